//! Rows that others have written, in their own way.

use idemkit_core::{ClaimKind, ClaimOutcome, EffectiveKey, Store};
use rstest::rstest;

use crate::support::{Table, acquired, claim, key, secs};

/// A completed row of the request that tests have, which expires `expires` from now, with these columns set.
async fn completed(table: &Table, key: EffectiveKey, expires: &str, columns: &[(&str, &str)]) {
    let fingerprint = claim(secs(1)).fingerprint.to_hex();
    let mut names = "effective_key, state, fingerprint, fingerprint_version, claim_token, lease_until".to_owned();
    let mut values =
        format!("'{key}', 'COMPLETED', '{fingerprint}', 1, '{}', now() + interval '{expires}'", "0".repeat(32));
    for (name, value) in columns {
        names.push_str(&format!(", {name}"));
        values.push_str(&format!(", {value}"));
    }
    table.execute(&format!("INSERT INTO {{t}} ({names}) VALUES ({values})")).await;
}

#[rstest]
#[case::headers_of_null(&[("response_status", "200"), ("response_headers", "'null'")])]
#[case::no_headers(&[("response_status", "200"), ("response_headers", "NULL")])]
#[case::an_attempt_of_zero(&[("response_status", "200"), ("attempt", "0")])]
#[case::an_outcome_that_is_spelled_out(&[("response_status", "200"), ("outcome", "'result'")])]
#[tokio::test]
async fn a_completed_row_of_another_is_replayed_and_expires(#[case] columns: &[(&str, &str)]) {
    let table = Table::make().await;
    let store = table.store().notices(false).build().unwrap();
    completed(&table, key("kept"), "1 hour", columns).await;
    let kept = store.claim(&key("kept"), &claim(secs(300))).await.unwrap();
    assert!(matches!(kept, ClaimOutcome::Completed(_)), "{kept:?}");
    completed(&table, key("expired"), "-1 hour", columns).await;
    let fresh = acquired(store.claim(&key("expired"), &claim(secs(300))).await.unwrap());
    assert_eq!((fresh.kind, fresh.attempt), (ClaimKind::Fresh, 1));
    table.drop().await;
}

#[rstest]
#[case::no_status(&[])]
#[case::a_status_beyond_all(&[("response_status", "70000")])]
#[case::an_outcome_of_nobody(&[("response_status", "200"), ("outcome", "'perhaps'")])]
#[tokio::test]
async fn a_row_that_does_not_decode_is_recovered_whether_it_has_expired_or_not(
    #[case] columns: &[(&str, &str)],
    #[values("1 hour", "-1 hour")] expires: &str,
) {
    let table = Table::make().await;
    let store = table.store().notices(false).build().unwrap();
    completed(&table, key("order"), expires, columns).await;
    let recovered = acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    assert_eq!((recovered.kind, recovered.attempt), (ClaimKind::Recovered, 1));
    table.drop().await;
}
