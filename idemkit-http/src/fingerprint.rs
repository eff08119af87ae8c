//! What of a request tells it from another under the same key.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use http::{header, request::Parts};
use idemkit_core::{Fingerprint, Fingerprinter, HttpRequest};
use serde_json::value::RawValue;

use crate::target::Target;

type Closure = Arc<dyn Fn(&Parts, &Bytes) -> Fingerprint + Send + Sync>;

/// How a request is compared.
#[derive(Clone)]
pub(crate) enum By {
    /// Method, path, query and body.
    Whole(Fingerprinter),
    /// As before, and of a JSON object these members.
    Members(Fingerprinter, Arc<[String]>),
    Closure(Closure),
}

impl By {
    pub(crate) fn fingerprint(&self, parts: &Parts, target: &Target<'_>, body: &Bytes) -> Fingerprint {
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let of = |fingerprinter: &Fingerprinter, body: &[u8]| {
            let request = HttpRequest::new(parts.method.as_str(), target.path).query(target.query).body(body);
            match content_type {
                Some(content_type) => fingerprinter.http(&request.content_type(content_type)),
                None => fingerprinter.http(&request),
            }
        };
        match self {
            Self::Whole(fingerprinter) => of(fingerprinter, body),
            Self::Members(fingerprinter, names) => {
                let chosen = content_type.filter(|of| is_json(of)).and_then(|_| chosen(body, names));
                of(fingerprinter, chosen.as_deref().unwrap_or(body))
            }
            Self::Closure(of) => of(parts, body),
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || media_type.ends_with("+json")
}

/// The members of these names, as an object of their own; nothing where the body is no object, or has none of them: then the names
/// are wrong, and any other body would be the same request.
fn chosen(body: &[u8], names: &[String]) -> Option<Vec<u8>> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
    let chosen: BTreeMap<_, _> = names.iter().filter_map(|name| members.get_key_value(name)).collect();
    if chosen.is_empty() { None } else { serde_json::to_vec(&chosen).ok() }
}

impl fmt::Debug for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(_) => f.write_str("Whole"),
            Self::Members(_, names) => f.debug_tuple("Members").field(names).finish(),
            Self::Closure(_) => f.write_str("Closure"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn of(by: &By, content_type: &str, body: &str) -> Fingerprint {
        let request = http::Request::post("/charges?x=1").header("content-type", content_type).body(()).unwrap();
        let (parts, ()) = request.into_parts();
        by.fingerprint(&parts, &Target::of(&parts.uri), &Bytes::from(body.to_owned()))
    }

    #[rstest]
    #[case::others_do_not_count(
        r#"{"amount":5,"currency":"EUR"}"#,
        r#" {"currency":"EUR", "sent":"now", "amount":5}"#,
        true
    )]
    #[case::chosen_ones_do(r#"{"amount":5,"currency":"EUR"}"#, r#"{"amount":6,"currency":"EUR"}"#, false)]
    #[case::absent_is_not_null(r#"{"amount":5}"#, r#"{"amount":5,"currency":null}"#, false)]
    #[case::integers_of_any_size(r#"{"amount":18446744073709551616}"#, r#"{"amount":18446744073709551617}"#, false)]
    #[case::the_last_of_a_name_counts(r#"{"amount":6,"amount":5}"#, r#"{"amount":5}"#, true)]
    #[case::what_is_inside_is_canonical(r#"{"amount":{"b":1,"a":2}}"#, r#"{"amount":{"a":2, "b":1}}"#, true)]
    #[case::none_of_them_counts_whole(r#"{"amuont":5}"#, r#"{"amuont":500000}"#, false)]
    #[case::no_object_counts_whole("[1]", "[2]", false)]
    #[case::no_json_counts_whole("{", "{{", false)]
    fn chosen_members_count(#[case] one: &str, #[case] other: &str, #[case] same: bool) {
        let by = By::Members(Fingerprinter::default(), Arc::new(["amount".to_owned(), "currency".to_owned()]));
        let json = |body| of(&by, "Application/JSON; charset=utf-8", body);
        assert_eq!(json(one) == json(other), same);
        assert_ne!(of(&by, "text/plain", one), of(&by, "text/plain", other), "another type counts whole");
    }
}
