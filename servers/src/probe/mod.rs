//! Whether a server answers, asked in its own protocol: an open port alone says nothing, least of all one that Docker
//! holds open.

mod bson;
mod mongo;

use crate::{Error, Kind};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// For one attempt to connect, and for each read and write.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Between attempts: short beside what the quickest server needs to start.
const PAUSE: Duration = Duration::from_millis(20);
/// More than any answer to our questions; what does not stop there is not the server that we look for.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Where a server is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where we reach it.
    pub address: SocketAddr,
    /// The port that it listens on itself: another one where Docker publishes it.
    pub own_port: u16,
}

/// Asks once. A MongoDB server that waits to be told of its replica set is told.
///
/// # Errors
///
/// The answer that was wrong, or why there was none.
pub fn probe(kind: Kind, place: Place) -> io::Result<()> {
    let mut server = TcpStream::connect_timeout(&place.address, ATTEMPT)?;
    server.set_read_timeout(Some(ATTEMPT))?;
    server.set_write_timeout(Some(ATTEMPT))?;
    match kind {
        Kind::DynamoDb => dynamodb(&mut server),
        Kind::Redis => redis(&mut server),
        Kind::Postgres => postgres(&mut server),
        Kind::Mongo => mongo::probe(&mut server, place.own_port),
    }
}

/// Asks until the server answers. `alive` is asked between attempts: an error of its ends the wait.
///
/// # Errors
///
/// [`Error::NotReady`] when `within` has passed, and what `alive` returns.
pub fn wait_until_ready(
    kind: Kind,
    place: Place,
    within: Duration,
    mut alive: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        alive()?;
        match probe(kind, place) {
            Ok(()) => return Ok(()),
            Err(last) if started.elapsed() >= within => {
                return Err(Error::NotReady {
                    what: format!("{kind} at {}", place.address),
                    within,
                    last: last.to_string(),
                });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn redis(server: &mut (impl Read + Write)) -> io::Result<()> {
    server.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    server.read_exact(&mut answer)?;
    expect(&answer, &answer == b"+PONG\r\n")
}

/// The start-up message of protocol 3.0. An error that says that the server is starting is not an answer; any request
/// for a password is one, and so is a refusal of this user.
fn postgres(server: &mut (impl Read + Write)) -> io::Result<()> {
    let mut message = vec![];
    message.extend_from_slice(&196_608_u32.to_be_bytes());
    message.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
    let length = u32::try_from(message.len() + 4).map_err(io::Error::other)?;
    server.write_all(&length.to_be_bytes())?;
    server.write_all(&message)?;

    let mut head = [0; 5];
    server.read_exact(&mut head)?;
    if head[0] == b'R' {
        return Ok(());
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut body = vec![0; length.saturating_sub(4).min(ANSWER_BYTES_MAX)];
    server.read_exact(&mut body)?;
    // 57P03: cannot_connect_now. Class 28: authorization, which only a server that is up refuses.
    expect(&body, head[0] == b'E' && body.windows(3).any(|field| field == b"C28"))
}

/// Any answer by HTTP to ListTables: whether it likes our made-up signature is another question.
fn dynamodb(server: &mut (impl Read + Write)) -> io::Result<()> {
    server.write_all(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
        X-Amz-Target: DynamoDB_20120810.ListTables\r\n\
        Authorization: AWS4-HMAC-SHA256 Credential=probe/20260101/us-east-1/dynamodb/aws4_request, \
        SignedHeaders=host;x-amz-date;x-amz-target, Signature=00\r\nX-Amz-Date: 20260101T000000Z\r\n\
        Content-Length: 2\r\n\r\n{}",
    )?;
    let mut answer = [0; 12];
    server.read_exact(&mut answer)?;
    // 5xx: it is there and not ready.
    expect(&answer, answer.starts_with(b"HTTP/1.") && matches!(answer[9], b'2' | b'4'))
}

fn expect(answer: &[u8], good: bool) -> io::Result<()> {
    if good {
        return Ok(());
    }
    let seen = String::from_utf8_lossy(&answer[..answer.len().min(200)]).escape_debug().to_string();
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it answered: {seen}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written, and what is answered.
    struct Script(Vec<u8>, io::Cursor<Vec<u8>>);

    impl Script {
        fn answering(answer: &[u8]) -> Self {
            Self(vec![], io::Cursor::new(answer.to_vec()))
        }
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn redis_that_loads_its_data_is_not_ready() {
        assert!(redis(&mut Script::answering(b"+PONG\r\n")).is_ok());
        assert!(redis(&mut Script::answering(b"-LOADING Redis is loading\r\n")).is_err());
        assert!(redis(&mut Script::answering(b"")).is_err());
    }

    #[test]
    fn postgres_that_starts_is_not_ready() {
        let error = |body: &[u8]| {
            let mut message = vec![b'E'];
            message.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
            message.extend_from_slice(body);
            message
        };
        assert!(postgres(&mut Script::answering(b"R\0\0\0\x08\0\0\0\0")).is_ok());
        assert!(postgres(&mut Script::answering(&error(b"SFATAL\0C28P01\0Mno\0\0"))).is_ok());
        assert!(postgres(&mut Script::answering(&error(b"SFATAL\0C57P03\0Mstarting up\0\0"))).is_err());

        let mut script = Script::answering(b"R\0\0\0\x08\0\0\0\0");
        postgres(&mut script).unwrap();
        assert_eq!(usize::try_from(u32::from_be_bytes(script.0[..4].try_into().unwrap())).unwrap(), script.0.len());
    }

    #[test]
    fn dynamodb_may_refuse_but_not_fail() {
        assert!(dynamodb(&mut Script::answering(b"HTTP/1.1 200 OK\r\n")).is_ok());
        assert!(dynamodb(&mut Script::answering(b"HTTP/1.1 400 Bad Request\r\n")).is_ok());
        assert!(dynamodb(&mut Script::answering(b"HTTP/1.1 503 Unavailable\r\n")).is_err());
        assert!(dynamodb(&mut Script::answering(b"+PONG\r\n")).is_err());
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_when_the_server_is_gone() {
        // Nobody listens at port 1, while one that was free a moment ago may be another's by now.
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let nobody = Place { address, own_port: address.port() };
        let late = wait_until_ready(Kind::Redis, nobody, Duration::from_millis(50), || Ok(()));
        assert!(matches!(late, Err(Error::NotReady { .. })), "{late:?}");
        let gone = wait_until_ready(Kind::Redis, nobody, Duration::from_secs(600), || Err(Error::NoPostgresUser));
        assert!(matches!(gone, Err(Error::NoPostgresUser)), "{gone:?}");
    }
}
