//! Which way a server is to come, as far as the environment decides it.

use idemkit_servers::{Kind, url};

/// No Docker for this server, where its image variable says so.
const NO_IMAGE: &str = "none";

/// What to try, and whether something else may take its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// There is one already, at a URL that the tests read themselves.
    Url,
    /// This image and no other.
    NamedImage(String),
    /// The official image; a program where it does not start.
    OfficialImage,
    /// A program.
    Program,
}

impl Way {
    pub(crate) fn of(kind: Kind) -> Self {
        let image = std::env::var(kind.image_variable()).ok();
        Self::from(url(kind).is_ok(), image.as_deref())
    }

    fn from(has_url: bool, image: Option<&str>) -> Self {
        match image.map(str::trim).filter(|image| !image.is_empty()) {
            _ if has_url => Self::Url,
            Some(NO_IMAGE) => Self::Program,
            Some(image) => Self::NamedImage(image.to_owned()),
            None => Self::OfficialImage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_before_an_image() {
        assert_eq!(Way::from(true, Some("redis:7")), Way::Url);
        assert_eq!(Way::from(true, None), Way::Url);
    }

    #[test]
    fn an_image_may_be_named_or_refused() {
        assert_eq!(Way::from(false, Some("redis:7")), Way::NamedImage("redis:7".into()));
        assert_eq!(Way::from(false, Some("none")), Way::Program);
        for unset in [None, Some(""), Some("  ")] {
            assert_eq!(Way::from(false, unset), Way::OfficialImage);
        }
    }
}
