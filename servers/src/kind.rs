//! The four stores, and where a test finds the server of one.

use std::fmt;

/// A store that needs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Amazon DynamoDB, or what speaks its protocol.
    DynamoDb,
    /// Redis or Valkey.
    Redis,
    /// PostgreSQL.
    Postgres,
    /// MongoDB, as a replica set of one: without one it has neither transactions nor change streams.
    Mongo,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::DynamoDb, Self::Redis, Self::Postgres, Self::Mongo];

    /// Its name in messages, and in the names of our images.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DynamoDb => "dynamodb",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Mongo => "mongo",
        }
    }

    /// The environment variable that holds the server's URL.
    pub const fn url_variable(self) -> &'static str {
        match self {
            Self::DynamoDb => "IDEMKIT_TEST_DYNAMODB_URL",
            Self::Redis => "IDEMKIT_TEST_REDIS_URL",
            Self::Postgres => "IDEMKIT_TEST_POSTGRES_URL",
            Self::Mongo => "IDEMKIT_TEST_MONGO_URL",
        }
    }

    /// The environment variable that names a Docker image to use instead of [`Kind::official_image`]; `none` for no
    /// Docker.
    pub const fn image_variable(self) -> &'static str {
        match self {
            Self::DynamoDb => "IDEMKIT_TEST_DYNAMODB_IMAGE",
            Self::Redis => "IDEMKIT_TEST_REDIS_IMAGE",
            Self::Postgres => "IDEMKIT_TEST_POSTGRES_IMAGE",
            Self::Mongo => "IDEMKIT_TEST_MONGO_IMAGE",
        }
    }

    /// The image used where none is named. Pinned, so that a test does not change its mind from one day to the next.
    pub const fn official_image(self) -> &'static str {
        match self {
            Self::DynamoDb => "amazon/dynamodb-local:2.5.4",
            Self::Redis => "redis:7.4-bookworm",
            Self::Postgres => "postgres:15-bookworm",
            Self::Mongo => "mongo:7.0",
        }
    }

    /// The port that such a server listens on where nobody chose another.
    pub const fn usual_port(self) -> u16 {
        match self {
            Self::DynamoDb => 8000,
            Self::Redis => 6379,
            Self::Postgres => 5432,
            Self::Mongo => 27017,
        }
    }

    /// The URL of a server that was started here, on a port of the loopback interface.
    pub fn url_at(self, port: u16) -> String {
        match self {
            Self::DynamoDb => format!("http://127.0.0.1:{port}"),
            Self::Redis => format!("redis://127.0.0.1:{port}"),
            Self::Postgres => format!("postgres://postgres:postgres@127.0.0.1:{port}/postgres"),
            // Direct: the name that the server gives itself in its replica set may be one from inside its container.
            Self::Mongo => format!("mongodb://127.0.0.1:{port}/?directConnection=true"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no server for a test, and these are the ways to get one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no {kind} server for the tests. Three ways to have one:\n  \
     1. a server of yours: set {} to its URL\n  \
     2. Docker: `cargo xtask test` starts {}, or the image named by {}\n  \
     3. a program on this machine: `cargo xtask servers install --programs` installs it, and `cargo xtask test` starts it\n\
     For single tests: `cargo xtask servers with -- cargo test -p PACKAGE`, or `cargo xtask servers up` in another window.{reasons}",
    kind.url_variable(), kind.official_image(), kind.image_variable()
)]
pub struct MissingServer {
    /// The store.
    pub kind: Kind,
    /// Why the ways that were tried did not lead to one: empty, or lines that each begin with a line break.
    pub reasons: String,
}

/// The URL of the server that tests of this store use, or what to do to have one.
///
/// # Errors
///
/// [`MissingServer`] where the environment names none.
pub fn url(kind: Kind) -> Result<String, MissingServer> {
    url_from(kind, |name| std::env::var(name).ok())
}

/// As [`url`], from an environment that is given. An empty variable counts as none, as usual in shells and CI.
fn url_from(kind: Kind, variable: impl Fn(&str) -> Option<String>) -> Result<String, MissingServer> {
    variable(kind.url_variable())
        .filter(|url| !url.trim().is_empty())
        .ok_or(MissingServer { kind, reasons: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_from_its_own_variable() {
        let environment =
            |name: &str| name.starts_with("IDEMKIT_TEST_").then(|| format!("{}://", name.to_ascii_lowercase()));
        for kind in Kind::ALL {
            assert_eq!(url_from(kind, environment), Ok(format!("idemkit_test_{kind}_url://")));
        }
    }

    #[test]
    fn a_missing_server_is_an_error_that_names_the_three_ways() {
        for kind in Kind::ALL {
            for empty in [None, Some(String::new()), Some(" ".to_owned())] {
                let said = url_from(kind, |_| empty.clone()).unwrap_err().to_string();
                for way in [kind.url_variable(), kind.image_variable(), kind.official_image(), "servers install"] {
                    assert!(said.contains(way), "{way} is not in: {said}");
                }
            }
        }
    }

    #[test]
    fn official_images_are_pinned() {
        for kind in Kind::ALL {
            let (_, tag) = kind.official_image().rsplit_once(':').unwrap();
            assert_ne!(tag, "latest");
        }
    }
}
