//! The parts of an HTTP request that a fingerprint covers.

use std::fmt;

use crate::canonical;

/// What the fingerprint of an HTTP request covers: method, path, query and body. Headers do not count; the content type
/// only says how the body is to be read.
///
/// Different ways of writing the same request have the same fingerprint:
///
/// * method: upper case.
/// * path: repeated slashes and one trailing slash do not count, nor does the case of percent escapes. Escapes are not
///   decoded.
/// * query: pairs in any order, in any encoding of the same text. An absent query and an empty one are the same.
/// * body, if the content type is `application/json`: white space, the order of members, and the way of escaping text
///   do not count. Of repeated names the last counts. Integers are compared exactly, at any size; numbers with a point
///   or an exponent as doubles; `1` and `1.0` differ.
/// * body, if the content type is `application/x-www-form-urlencoded`: as the query.
/// * any other body, and one that is not what its content type says: byte for byte.
///
/// JSON is read as UTF-8; a body in another encoding counts byte for byte.
///
/// ```
/// use idemkit_core::{Fingerprint, HttpRequest};
///
/// let request = HttpRequest::new("POST", "/charge").query("b=2&a=1");
/// assert_eq!(Fingerprint::http(&request), Fingerprint::http(&HttpRequest::new("post", "//charge/").query("a=%31&b=2")));
/// ```
#[derive(Clone, Copy)]
pub struct HttpRequest<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    content_type: Option<&'a str>,
    body: &'a [u8],
}

impl<'a> HttpRequest<'a> {
    /// A request without query and body. `path` is the path as requested, not what a router left of it, and without the
    /// query.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, HttpRequest};
    ///
    /// let delete = Fingerprint::http(&HttpRequest::new("DELETE", "/x/1"));
    /// assert_eq!(delete.to_hex(), "4cc0def943af7312da2eb028cb68d3c13d19cc8ba445c2a87646bf0f2ea1850b");
    /// ```
    #[must_use]
    pub const fn new(method: &'a str, path: &'a str) -> Self {
        Self { method, path, query: "", content_type: None, body: &[] }
    }

    /// The same with this query, without the question mark.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, HttpRequest};
    ///
    /// let request = HttpRequest::new("POST", "/x");
    /// assert_ne!(Fingerprint::http(&request.query("a=1")), Fingerprint::http(&request.query("a=2")));
    /// ```
    #[must_use]
    pub const fn query(mut self, query: &'a str) -> Self {
        self.query = query;
        self
    }

    /// The same with this value of the `Content-Type` header, parameters and all.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, HttpRequest};
    ///
    /// let request = HttpRequest::new("POST", "/x").content_type("application/json; charset=utf-8");
    /// assert_eq!(Fingerprint::http(&request.body(b"[1]")), Fingerprint::http(&request.body(b"[ 1 ]")));
    /// ```
    #[must_use]
    pub const fn content_type(mut self, content_type: &'a str) -> Self {
        self.content_type = Some(content_type);
        self
    }

    /// The same with this body, whole and without a content encoding.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, HttpRequest};
    ///
    /// let request = HttpRequest::new("POST", "/x");
    /// assert_ne!(Fingerprint::http(&request.body(b"[1]")), Fingerprint::http(&request.body(b"[ 1 ]")));
    /// ```
    #[must_use]
    pub const fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    pub(super) fn with_canonical_parts<T>(&self, use_parts: impl FnOnce([&[u8]; 4]) -> T) -> T {
        let method = canonical::method(self.method);
        let path = canonical::path(self.path);
        let query = canonical::query(self.query.as_bytes());
        let body = canonical::body(self.content_type, self.body);
        use_parts([method.as_bytes(), path.as_bytes(), query.as_bytes(), &body])
    }
}

/// Shows method and path; of query and body, which may hold what must not be logged, only how many bytes they have.
impl fmt::Debug for HttpRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("query_bytes", &self.query.len())
            .field("content_type", &self.content_type)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}
