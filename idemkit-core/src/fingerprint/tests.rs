use proptest::prelude::*;
use rstest::rstest;

use super::*;

const SECRET: &str = "correct horse battery staple";

fn keyed() -> Fingerprinter {
    Fingerprinter::keyed(SECRET).expect("not empty")
}

#[rstest]
#[case(1, true)]
#[case(2, true)]
#[case(0, false)]
#[case(3, false)]
#[case(u32::MAX, false)]
fn only_known_versions_match(#[case] version: u32, #[case] expected: bool) {
    let one = Fingerprint::from_stored(version, [7; 32]);
    assert_eq!(one.matches(&one), expected);
    assert_eq!(one, Fingerprint::from_stored(version, [7; 32]));
    let mut hash = [7; 32];
    hash[31] = 8;
    assert!(!one.matches(&Fingerprint::from_stored(version, hash)));
}

#[test]
fn versions_do_not_match_each_other() {
    let (plain, keyed) = (Fingerprint::from_stored(1, [7; 32]), Fingerprint::from_stored(2, [7; 32]));
    assert!(!plain.matches(&keyed) && !keyed.matches(&plain));
}

/// Against Python: hmac.new(secret, length-prefixed parts, sha256).
#[test]
fn keyed_is_hmac_over_the_same_encoding() {
    let made = keyed().of_parts(["a", "bc"]);
    assert_eq!(made.version(), 2);
    assert_eq!(made.to_hex(), "3205362e8c855dddb2c81e4906ae0f4567659a059f9649c6a311914498cbd050");
    let long = Fingerprinter::keyed([b'x'; 100]).expect("not empty").of_parts(["a", "bc"]);
    assert_eq!(long.to_hex(), "af73bafdbcfdaaf6e2e7c1255174f56523d91ad17feddb93289af06a1176c647");
}

#[test]
fn a_secret_says_something() {
    for secret in [&[][..], &[0], &[0; 64], &[0; 65]] {
        assert_eq!(Fingerprinter::keyed(secret).err(), Some(InvalidSecret));
    }
    assert!(Fingerprinter::keyed([1]).is_ok());
}

#[test]
fn another_secret_does_not_match() {
    let other = Fingerprinter::keyed("another").expect("not empty");
    assert!(!keyed().of_payload("x").matches(&other.of_payload("x")));
    assert!(keyed().of_payload("x").matches(&keyed().clone().of_payload("x")));
}

#[test]
fn debug_never_shows_secret_query_or_body() {
    assert_eq!(format!("{:?} {:#?}", keyed(), keyed()), "Fingerprinter::keyed(..) Fingerprinter::keyed(..)");
    assert_eq!(format!("{:?}", Fingerprinter::default()), "Fingerprinter::plain()");
    let request = HttpRequest::new("POST", "/x").query("card=4111").content_type("text/plain").body(b"4111");
    assert_eq!(
        format!("{request:?}"),
        r#"HttpRequest { method: "POST", path: "/x", query_bytes: 9, content_type: Some("text/plain"), body_bytes: 4 }"#
    );
    let fingerprint = Fingerprint::from_stored(9, [0xAB; 32]);
    assert_eq!(format!("{fingerprint:?}"), format!("Fingerprint {{ version: 9, hash: {} }}", "ab".repeat(32)));
}

#[test]
fn a_request_hashes_its_canonical_parts() {
    let request = HttpRequest::new("post", "/a//b%2f/")
        .query("b=%32&a")
        .content_type("Application/JSON ; charset=x")
        .body(b"{\"b\": 1, \"a\": 2}");
    let parts = ["POST", "/a/b%2F", "a=&b=2", r#"{"a":2,"b":1}"#];
    assert_eq!(Fingerprint::http(&request), Fingerprint::of_parts(parts));
    assert_eq!(keyed().http(&request), keyed().of_parts(parts));
}

proptest! {
    #[test]
    fn any_request_has_a_fingerprint(
        method in any::<String>(), path in any::<String>(), query in any::<String>(),
        kind in prop::option::of(prop_oneof![
            any::<String>(), Just("application/json".into()), Just("application/x-www-form-urlencoded".into()),
        ]),
        body in any::<Vec<u8>>(),
    ) {
        let mut request = HttpRequest::new(&method, &path).query(&query).body(&body);
        if let Some(kind) = &kind {
            request = request.content_type(kind);
        }
        let made = Fingerprint::http(&request);
        prop_assert!(made.matches(&Fingerprint::http(&request)));
        prop_assert_eq!(Fingerprint::from_stored_hex(made.version(), &made.to_hex()), Ok(made));
        prop_assert_ne!(*keyed().http(&request).hash(), *made.hash());
    }
}
