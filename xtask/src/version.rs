//! Versions of the compiler, as far as they are compared here.

use std::cmp::Ordering;

/// `1.95`, `1.95.0`, or `1.97.0-nightly`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    release: (u32, u32, u32),
    /// A beta or a nightly: of a release that was not yet.
    preview: bool,
}

impl Version {
    /// None for what is not two or three numbers, perhaps with a `-suffix`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (numbers, preview) = match text.split_once('-') {
            Some((numbers, _)) => (numbers, true),
            None => (text, false),
        };
        let mut parts = numbers.split('.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        let patch = parts.next().map_or(Some(0), |patch| patch.parse().ok())?;
        parts.next().is_none().then_some(Self { release: (major, minor, patch), preview })
    }

    /// From what `rustc --version` prints: `rustc 1.95.0 (59807616e 2026-04-14)`.
    pub(crate) fn of_rustc(output: &str) -> Option<Self> {
        Self::parse(output.strip_prefix("rustc ")?.split_whitespace().next()?)
    }

    /// From a toolchain's name as rustup lists it, where that name is a version: `1.95.0-x86_64-unknown-linux-gnu`.
    pub(crate) fn of_toolchain(name: &str) -> Option<Self> {
        let (channel, host) = name.split_once('-')?;
        let preview = host.starts_with("beta") || host.starts_with("nightly");
        Self::parse(channel).map(|version| Self { preview, ..version })
    }

    /// How a compiler of this version stands to a stated oldest one. All patch releases of one minor count as that one:
    /// they add nothing to the language. A preview of the stated release is not it.
    pub(crate) fn against(self, stated: Self) -> Ordering {
        let ((major, minor, patch), (stated_major, stated_minor, stated_patch)) = (self.release, stated.release);
        match (major, minor).cmp(&(stated_major, stated_minor)) {
            Ordering::Equal if self.preview || patch < stated_patch => Ordering::Less,
            ordering => ordering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn two_or_three_numbers_are_a_version() {
        assert_eq!(version("1.95"), version("1.95.0"));
        assert_ne!(version("1.95.0"), version("1.95.0-nightly"));
        for text in ["", "1", "stable", "1.x", "1.95.0.1", "1.95.x"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn rustc_and_rustup_name_versions_in_their_own_ways() {
        assert_eq!(Version::of_rustc("rustc 1.95.0 (59807616e 2026-04-14)\n"), Some(version("1.95")));
        assert_eq!(Version::of_rustc("rustc 1.97.0-nightly (abc 2026-05-01)"), Some(version("1.97.0-nightly")));
        assert_eq!(Version::of_rustc("cargo 1.95.0"), None);
        assert_eq!(Version::of_toolchain("1.95.0-x86_64-unknown-linux-gnu"), Some(version("1.95")));
        assert_eq!(Version::of_toolchain("1.95.0-beta.2-x86_64-unknown-linux-gnu"), Some(version("1.95.0-beta.2")));
        assert_eq!(Version::of_toolchain("stable-x86_64-unknown-linux-gnu"), None);
    }

    #[test]
    fn numbers_compare_as_numbers_and_patches_do_not_count_up() {
        let stated = version("1.95");
        for (running, expected) in [
            ("1.95.0", Ordering::Equal),
            ("1.95.1", Ordering::Equal),
            ("1.95.0-nightly", Ordering::Less),
            ("1.96.0-nightly", Ordering::Greater),
            ("1.100.0", Ordering::Greater),
            ("1.9.0", Ordering::Less),
            ("2.0.0", Ordering::Greater),
        ] {
            assert_eq!(version(running).against(stated), expected, "{running}");
        }
        assert_eq!(version("1.95.0").against(version("1.95.1")), Ordering::Less);
    }
}
