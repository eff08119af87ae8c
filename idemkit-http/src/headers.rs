//! Which headers of an answer are kept for its replay.

use std::collections::HashSet;

use http::{HeaderName, header};

/// What is kept where nothing else is said.
const KEPT: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_DISPOSITION,
    header::LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    header::CACHE_CONTROL,
];

/// What is not kept though it is asked for, unless this list, too, is another: it belongs to one caller, one request or one
/// connection.
const NEVER: [&str; 14] = [
    "authorization",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "www-authenticate",
];

#[derive(Clone, Debug)]
pub(crate) struct HeaderLists {
    pub(crate) kept: HashSet<HeaderName>,
    pub(crate) never: HashSet<HeaderName>,
}

impl HeaderLists {
    pub(crate) fn keeps(&self, name: &HeaderName) -> bool {
        self.kept.contains(name) && !self.never.contains(name)
    }
}

impl Default for HeaderLists {
    fn default() -> Self {
        Self { kept: KEPT.into_iter().collect(), never: NEVER.into_iter().map(HeaderName::from_static).collect() }
    }
}
