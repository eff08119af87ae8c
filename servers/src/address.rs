//! The address in a server's URL.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;

use crate::{Error, Kind};

/// The address of the server at `url`: `scheme://[user[:password]@]host[:port][/…]`; of several hosts, the first.
///
/// # Errors
///
/// [`Error::System`] where the host is not known.
pub fn address(kind: Kind, url: &str) -> Result<SocketAddr, Error> {
    let host = &url[host_range(url)];
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let with_port = if has_port { host.to_owned() } else { format!("{host}:{}", kind.usual_port()) };
    with_port
        .to_socket_addrs()
        .and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(Error::system(format!("the address of the {kind} server")))
}

/// Where `host[:port]` is in a URL.
pub(crate) fn host_range(url: &str) -> Range<usize> {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |at| authority + at);
    let host = url[authority..end].rfind('@').map_or(authority, |at| authority + at + 1);
    let end = url[host..end].find(',').map_or(end, |at| host + at);
    host..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_urls() {
        for (kind, url, port) in [
            (Kind::Redis, "redis://127.0.0.1", 6379),
            (Kind::Redis, "redis://:secret@127.0.0.1:7000/2", 7000),
            (Kind::Postgres, "postgres://u:p@x:q@127.0.0.1/db", 5432),
            (Kind::DynamoDb, "http://127.0.0.1:8000", 8000),
            (Kind::Mongo, "mongodb://127.0.0.1:1,127.0.0.2:2/?directConnection=true", 1),
        ] {
            assert_eq!(address(kind, url).unwrap(), SocketAddr::from(([127, 0, 0, 1], port)), "{url}");
        }
    }
}
