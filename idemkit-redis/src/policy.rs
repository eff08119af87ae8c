//! What silently voids the promise, looked for at first use: a server that evicts records.

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use redis::Value;

use crate::{NAME, link::Link};

/// An error where the server evicts keys when its memory is full. Where this user may not ask, it cannot be seen.
pub(crate) async fn check(link: &Link) -> Result<(), StoreError> {
    let (mut config, mut info) = (redis::cmd("CONFIG"), redis::cmd("INFO"));
    config.arg("GET").arg("maxmemory-policy");
    info.arg("memory");
    // Managed servers hide CONFIG; in a cluster it is one node's, and INFO is that of each primary.
    let asked = if link.is_cluster() { [info, config] } else { [config, info] };
    let mut policies = vec![];
    for ask in asked {
        if let Some(answer) = link.command(&ask).await? {
            find(&answer, &mut policies);
        }
        if !policies.is_empty() {
            break;
        }
    }
    match policies.into_iter().find(|policy| policy != "noeviction") {
        Some(policy) => {
            let error = StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No);
            Err(error.with_detail(format!(
                "the server's maxmemory-policy is {policy}: it may evict a record, and its operation would run again; set \
                 it with CONFIG SET maxmemory-policy noeviction, or accept that with Builder::allow_eviction"
            )))
        }
        None => Ok(()),
    }
}

/// The policies in an answer of CONFIG GET or INFO, of one server or of each.
fn find(answer: &Value, policies: &mut Vec<String>) {
    match answer {
        Value::BulkString(bytes) => policies.extend(of_text(&String::from_utf8_lossy(bytes))),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => policies.extend(of_text(text)),
        Value::Array(items) | Value::Set(items) => items.iter().for_each(|item| find(item, policies)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| find(value, policies)),
        _ => {}
    }
}

fn of_text(text: &str) -> Option<String> {
    if ["noeviction", "allkeys-", "volatile-"].iter().any(|known| text.starts_with(known)) {
        return Some(text.to_owned());
    }
    text.lines().find_map(|line| Some(line.strip_prefix("maxmemory_policy:")?.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[rstest]
    #[case::config_of_resp2(Value::Array(vec![bulk("maxmemory-policy"), bulk("allkeys-lru")]), &["allkeys-lru"])]
    #[case::config_of_resp3(Value::Map(vec![(bulk("maxmemory-policy"), bulk("noeviction"))]), &["noeviction"])]
    #[case::config_that_is_hidden(Value::Array(vec![]), &[])]
    #[case::info(bulk("# Memory\r\nused_memory:1\r\nmaxmemory_policy:volatile-ttl\r\n"), &["volatile-ttl"])]
    #[case::info_of_each_node(
        Value::Map(vec![
            (bulk("127.0.0.1:7000"), bulk("maxmemory_policy:noeviction\r\n")),
            (bulk("127.0.0.1:7001"), bulk("maxmemory_policy:allkeys-lru\r\n")),
        ]),
        &["noeviction", "allkeys-lru"]
    )]
    fn the_policies_are_found_in(#[case] answer: Value, #[case] expected: &[&str]) {
        let mut policies = vec![];
        find(&answer, &mut policies);
        assert_eq!(policies, expected);
    }
}
