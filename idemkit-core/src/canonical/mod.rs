//! The canonical form of HTTP requests: one spelling for all ways of writing the same request.
//!
//! Keys and fingerprints of records that already exist depend on each rule in here, in every release and every
//! language. A rule can be changed only together with the version of the fingerprint.

mod json;
mod path;
mod query;

use std::borrow::Cow;

pub(crate) use self::path::path;
pub(crate) use self::query::query;

/// Upper case, of ASCII letters only: what else a method may contain does not depend on any locale or Unicode version.
pub(crate) fn method(method: &str) -> String {
    method.to_ascii_uppercase()
}

/// The body in canonical form, if it is what its content type says, and otherwise as received.
pub(crate) fn body<'a>(content_type: Option<&str>, body: &'a [u8]) -> Cow<'a, [u8]> {
    match content_type.map(media_type) {
        Some(kind) if kind.eq_ignore_ascii_case("application/json") => json(body),
        Some(kind) if kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") => {
            Cow::Owned(query(body).into_bytes())
        }
        _ => Cow::Borrowed(body),
    }
}

/// JSON in canonical form, if it is that, and otherwise as received.
pub(crate) fn json(body: &[u8]) -> Cow<'_, [u8]> {
    json::canonical(body).map_or(Cow::Borrowed(body), |text| Cow::Owned(text.into_bytes()))
}

/// The media type without parameters and surrounding white space, in its own case.
fn media_type(content_type: &str) -> &str {
    let end = content_type.find(';').unwrap_or(content_type.len());
    content_type[..end].trim_ascii()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("POST", "POST")]
    #[case("pAtch", "PATCH")]
    #[case("straße", "STRAßE")]
    #[case("", "")]
    fn methods(#[case] given: &str, #[case] expected: &str) {
        assert_eq!(method(given), expected);
    }

    #[rstest]
    #[case(Some("application/json"), "{ }")]
    #[case(Some("APPLICATION/Json"), "{ }")]
    #[case(Some(" \tapplication/json\t "), "{ }")]
    #[case(Some("application/json;charset=utf-8"), "{ }")]
    #[case(Some("application/json ; charset=utf-8; x=\";\""), "{ }")]
    #[case(Some("application/json;"), "{ }")]
    fn json_media_types(#[case] content_type: Option<&str>, #[case] given: &str) {
        assert_eq!(*body(content_type, given.as_bytes()), *b"{}");
    }

    #[rstest]
    #[case(None)]
    #[case(Some(""))]
    #[case(Some(";"))]
    #[case(Some("; application/json"))]
    #[case(Some("text/json"))]
    #[case(Some("application/problem+json"))]
    #[case(Some("application/jsonx"))]
    #[case(Some("application/json, text/plain"))]
    #[case(Some("application /json"))]
    #[case(Some("application/ſon"))]
    #[case(Some("\u{a0}application/json"))]
    fn other_media_types_leave_the_body(#[case] content_type: Option<&str>) {
        let received = b"{ \"a\" : 1, b&a ";
        assert!(matches!(body(content_type, received), Cow::Borrowed(raw) if raw == received));
        assert!(matches!(body(content_type, b"{ }"), Cow::Borrowed(b"{ }")));
    }

    #[rstest]
    #[case("")]
    #[case(" {} x")]
    #[case("{\"a\":")]
    fn what_does_not_parse_stays_as_received(#[case] received: &str) {
        assert!(
            matches!(body(Some("application/json"), received.as_bytes()), Cow::Borrowed(raw) if raw == received.as_bytes())
        );
    }

    #[test]
    fn the_byte_order_mark_goes_only_if_the_rest_parses() {
        assert_eq!(*body(Some("application/json"), b"\xEF\xBB\xBF[ 1]"), *b"[1]");
        assert_eq!(*body(Some("application/json"), b"\xEF\xBB\xBF[ 1"), *b"\xEF\xBB\xBF[ 1");
    }

    /// `Infinity` does not parse, and so is canonical as raw bytes are.
    #[test]
    fn numbers_beyond_doubles_are_canonical_as_well() {
        let kind = Some("application/json");
        let once = body(kind, b"{ \"b\": 1e400, \"a\": [-1E+400] }");
        assert_eq!(*once, *b"{\"a\":[-Infinity],\"b\":Infinity}");
        assert_eq!(body(kind, &once), once);
    }

    #[test]
    fn forms_are_queries_of_bytes() {
        let kind = Some("Application/X-WWW-Form-URLencoded; charset=utf-8");
        assert_eq!(*body(kind, b"b=\xFF&a=1"), *b"a=1&b=%EF%BF%BD");
        assert_eq!(*body(kind, b""), *b"");
    }
}
