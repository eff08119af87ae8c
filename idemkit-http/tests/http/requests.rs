//! Any request.

use proptest::prelude::*;

use crate::asked::Asked;

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..max)
}

fn asked() -> impl Strategy<Value = Asked> {
    let method =
        prop_oneof![8 => Just(b"POST".to_vec()), 2 => Just(b"PATCH".to_vec()), 1 => "[A-Z]{1,6}".prop_map(Vec::from)];
    let uri = prop_oneof![3 => "/[a-z/%?&=+]{0,20}".prop_map(Vec::from), 1 => bytes(20)];
    let key = prop_oneof![6 => "[ -~]{1,40}".prop_map(Vec::from), 2 => "\"[ -~]{0,40}\"".prop_map(Vec::from), 1 => bytes(300)];
    let keys = prop_oneof![8 => key.clone().prop_map(|key| vec![key]), 1 => prop::collection::vec(key, 0..3)];
    let content_type = prop_oneof![
        2 => Just(Some(b"application/json".to_vec())),
        1 => Just(Some(b"application/x-www-form-urlencoded".to_vec())),
        1 => prop::option::of(bytes(20)),
    ];
    let body = prop_oneof![2 => prop::collection::vec(bytes(40), 0..4), 1 => "[\\[{\"a:1,}\\]]{0,30}".prop_map(|json| vec![json.into()])];
    let status = prop_oneof![3 => 200_u16..210, 1 => 200_u16..600];
    (method, uri, keys, content_type, body, status).prop_map(|(method, uri, keys, content_type, body, status)| Asked {
        method,
        uri,
        keys,
        content_type,
        body,
        status,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn whatever_is_asked_twice_runs_once_or_is_refused(asked in asked()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(asked.check());
    }
}
