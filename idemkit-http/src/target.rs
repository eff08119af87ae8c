//! The path and query that a client asked for.

use http::{Uri, request::Parts};

/// Of the request as it came, not of what a nested router has left of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
}

impl<'a> Target<'a> {
    pub(crate) fn of(uri: &'a Uri) -> Self {
        Self { path: uri.path(), query: uri.query().unwrap_or_default() }
    }

    /// axum keeps the original beside the request, where a nested router takes its prefix off.
    pub(crate) fn original(parts: &'a Parts) -> Self {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
            return Self::of(uri);
        }
        Self::of(&parts.uri)
    }
}
