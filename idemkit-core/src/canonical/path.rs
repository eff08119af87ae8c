//! Canonical paths.

/// Repeated slashes become one, one trailing slash goes unless it is all there is, and hex digits of percent escapes
/// are upper case.
///
/// Nothing is decoded, and `.` and `..` stay: whether such paths mean the same is known to the service only. A `%` that
/// is not followed by two hex digits stays as it is, as does the empty path.
pub(crate) fn path(path: &str) -> String {
    let mut canonical = String::with_capacity(path.len());
    // Characters that are left of a percent escape.
    let mut escaped = 0;
    for (at, character) in path.char_indices() {
        if character == '/' && canonical.ends_with('/') {
            continue;
        }
        if character == '%' && escape_follows(&path.as_bytes()[at..]) {
            escaped = 3;
        }
        canonical.push(if escaped > 0 { character.to_ascii_uppercase() } else { character });
        escaped = usize::saturating_sub(escaped, 1);
    }
    if canonical.len() > 1 && canonical.ends_with('/') {
        canonical.pop();
    }
    canonical
}

fn escape_follows(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/", "/")]
    #[case("", "")]
    #[case("//", "/")]
    #[case("////", "/")]
    #[case("/a", "/a")]
    #[case("/a/", "/a")]
    #[case("/a//", "/a")]
    #[case("//a///b//", "/a/b")]
    #[case("a//b/", "a/b")]
    #[case("a/", "a")]
    #[case("*", "*")]
    #[case("/A/b", "/A/b")]
    #[case("/a%2fb", "/a%2Fb")]
    #[case("/a%2F%2f/", "/a%2F%2F")]
    #[case("/%c3%A9/é", "/%C3%A9/é")]
    #[case("/%", "/%")]
    #[case("/%a", "/%a")]
    #[case("/%a/", "/%a")]
    #[case("/%/ab", "/%/ab")]
    #[case("/%zz%aa", "/%zz%AA")]
    #[case("/%az", "/%az")]
    #[case("/%%2f", "/%%2F")]
    #[case("/%2%2f", "/%2%2F")]
    #[case("/%2f2f", "/%2F2f")]
    #[case("/%2ff", "/%2Ff")]
    #[case("/%aé", "/%aé")]
    #[case("/%éa", "/%éa")]
    #[case("/a/./b/../c", "/a/./b/../c")]
    #[case("/+ ?#", "/+ ?#")]
    #[case("/%61", "/%61")]
    #[case("/\0//\0", "/\0/\0")]
    fn table(#[case] given: &str, #[case] expected: &str) {
        assert_eq!(path(given), expected);
    }

    proptest! {
        #[test]
        fn canonical_is_its_own_canonical_form(given in prop_oneof![any::<String>(), "[/%0-9a-fA-Fé]{0,20}"]) {
            let once = path(&given);
            prop_assert_eq!(path(&once), once);
        }

        #[test]
        fn only_slashes_and_letter_case_change(given in "[/%0-9a-fA-Fé]{0,20}") {
            let bare = |text: &str| text.replace('/', "").to_uppercase();
            prop_assert_eq!(bare(&path(&given)), bare(&given));
        }
    }
}
