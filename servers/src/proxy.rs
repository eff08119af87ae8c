//! A wire that can fail: a TCP proxy between a client under test and its server.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::address::{address as server_address, host_range};
use crate::{Error, Kind};

/// For a connection to the server: it listens on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// More than any message of a test needs in one piece; larger ones come in several.
const PIECE_BYTES: usize = 64 * 1024;

/// A TCP proxy before a server. It passes everything on until it is told of a fault.
///
/// Faults concern whole replies as far as the wire shows them: what a server sends after a request, up to the next
/// request. Each connection has two threads, and all end when the proxy is dropped.
///
/// ```no_run
/// use idemkit_servers::{Kind, Lost, Proxy};
///
/// let proxy = Proxy::before(Kind::Redis, &idemkit_servers::url(Kind::Redis)?)?;
/// let url = proxy.url();
/// // … connect a store to `url` …
/// proxy.lose_reply_to(b"EVALSHA", Lost::ByReset);
/// // … the next script takes effect on the server, and the store never hears of it …
/// assert_eq!(proxy.lost(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    url: String,
    address: SocketAddr,
    wire: Arc<Wire>,
}

/// How a client learns that its reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The connection breaks.
    ByReset,
    /// Not at all: nothing comes any more on this connection, and it stays open.
    InSilence,
}

#[derive(Debug, Default)]
struct Wire {
    state: Mutex<State>,
    /// Told of every change of the state.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    losses: Vec<Loss>,
    lost: usize,
    requests: usize,
    /// Before each piece that a server sends.
    delay: Duration,
    refuses: bool,
    frozen: bool,
    closed: bool,
    connections: Vec<Connection>,
    next_id: u64,
}

#[derive(Debug)]
struct Loss {
    pattern: Vec<u8>,
    how: Lost,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    client: TcpStream,
    server: TcpStream,
    /// What becomes of the next that the server sends.
    losing: Option<Lost>,
    /// What is held back of both directions since a reply was lost in silence.
    mute: bool,
}

impl Proxy {
    /// A proxy before the server at `url`, on a port of its own.
    ///
    /// # Errors
    ///
    /// [`Error::System`] where the URL names no address, or no port can be had.
    pub fn before(kind: Kind, url: &str) -> Result<Self, Error> {
        let server = server_address(kind, url)?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::system("a port for the proxy to listen on"))?;
        let address = listener.local_addr().map_err(Error::system("the proxy's address"))?;
        let wire = Arc::new(Wire::default());
        let accepting = Arc::clone(&wire);
        std::thread::spawn(move || accept(&listener, server, &accepting));
        let host = host_range(url);
        let url = format!("{}{address}{}", &url[..host.start], &url[host.end..]);
        Ok(Self { url, address, wire })
    }

    /// The server's URL, with this proxy as its host.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where this proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The reply to the next request that contains `pattern` is lost: the request takes effect, and its sender does not
    /// hear of it. May be said several times, for several requests; each concerns one request, the first to match.
    pub fn lose_reply_to(&self, pattern: &[u8], how: Lost) {
        self.change(|state| state.losses.push(Loss { pattern: pattern.to_vec(), how }));
    }

    /// How many replies were lost so far. A test that waits for none has tested nothing.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.state().lost
    }

    /// How many pieces clients have sent so far: not below the number of requests where each is answered before the
    /// next.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.state().requests
    }

    /// Before each piece that the server sends.
    pub fn delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// Whether new connections are closed at once. Those that are open stay.
    pub fn refuse(&self, refuses: bool) {
        self.change(|state| state.refuses = refuses);
    }

    /// Whether all connections, new ones too, are open and silent in both directions: a half-dead network. What was held
    /// back comes when it thaws.
    pub fn freeze(&self, frozen: bool) {
        self.change(|state| state.frozen = frozen);
    }

    /// Breaks all connections that are open. Returns how many there were.
    pub fn cut(&self) -> usize {
        let connections = std::mem::take(&mut self.state().connections);
        connections.iter().for_each(Connection::close);
        connections.len()
    }

    /// How many connections are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.state().connections.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.wire.state()
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state());
        self.wire.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.closed = true);
        self.cut();
        // Wakes the thread that accepts.
        _ = TcpStream::connect_timeout(&self.address, CONNECT);
    }
}

impl Connection {
    fn close(&self) {
        // Either may be closed by its other end already.
        _ = self.client.shutdown(Shutdown::Both);
        _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is half-written where a test has failed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the wire is frozen, and then for its delay. Returns what is to happen to a piece that the server sent.
    fn reply(&self, id: u64) -> Option<Lost> {
        let delay = self.thawed().delay;
        // In steps, so that a proxy that is dropped need not wait for it.
        let until = Instant::now() + delay;
        let mut state = self.state();
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if state.closed {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let connection = state.connections.iter_mut().find(|connection| connection.id == id)?;
        if connection.mute {
            return Some(Lost::InSilence);
        }
        let losing = connection.losing.take()?;
        connection.mute = true;
        state.lost += 1;
        Some(losing)
    }

    /// A piece that a client sent. Returns whether it goes on to the server.
    fn request(&self, id: u64, piece: &[u8]) -> bool {
        let mut state = self.thawed();
        state.requests += 1;
        let found = state.losses.iter().position(|loss| contains(piece, &loss.pattern));
        let how = found.map(|at| state.losses.remove(at).how);
        let Some(connection) = state.connections.iter_mut().find(|connection| connection.id == id) else {
            return false;
        };
        if how.is_some() {
            connection.losing = how;
        }
        !connection.mute
    }

    fn thawed(&self) -> MutexGuard<'_, State> {
        let frozen = |state: &mut State| state.frozen && !state.closed;
        self.changed.wait_while(self.state(), frozen).unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, id: u64) {
        let mut state = self.state();
        if let Some(at) = state.connections.iter().position(|connection| connection.id == id) {
            state.connections.swap_remove(at).close();
        }
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, wire: &Arc<Wire>) {
    for client in listener.incoming().flatten() {
        let refuses = {
            let state = wire.state();
            if state.closed {
                return;
            }
            state.refuses
        };
        if !refuses {
            // Where the server is away the client is dropped, which says so.
            _ = connect(client, server, wire);
        }
    }
}

fn connect(client: TcpStream, server: SocketAddr, wire: &Arc<Wire>) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&server, CONNECT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_end, server_end) = (client.try_clone()?, server.try_clone()?);
    let id = {
        let mut state = wire.state();
        let id = state.next_id;
        state.next_id += 1;
        let connection =
            Connection { id, client: client.try_clone()?, server: server.try_clone()?, losing: None, mute: false };
        state.connections.push(connection);
        id
    };
    let (there, back) = (Arc::clone(wire), Arc::clone(wire));
    std::thread::spawn(move || {
        let passed = pass(client, &server, |piece| if there.request(id, piece) { Fate::Pass } else { Fate::Drop });
        // A client that has said all may still be waiting for its answer; one that broke off is not.
        if passed.is_err() || server.shutdown(Shutdown::Write).is_err() {
            there.close(id);
        }
    });
    std::thread::spawn(move || {
        _ = pass(server_end, &client_end, |_| match back.reply(id) {
            None => Fate::Pass,
            Some(Lost::InSilence) => Fate::Drop,
            Some(Lost::ByReset) => Fate::Break,
        });
        back.close(id);
    });
    Ok(())
}

/// What becomes of a piece.
enum Fate {
    Pass,
    Drop,
    Break,
}

fn pass(mut from: TcpStream, mut to: &TcpStream, mut fate: impl FnMut(&[u8]) -> Fate) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = from.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        match fate(&piece[..length]) {
            Fate::Pass => to.write_all(&piece[..length])?,
            Fate::Drop => {}
            Fate::Break => return Ok(()),
        }
    }
}

fn contains(piece: &[u8], pattern: &[u8]) -> bool {
    pattern.is_empty() || piece.windows(pattern.len()).any(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, a line for a line.
    fn echo() -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("echo://user:p@ss@{}/path?a=1", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok(length @ 1..) = (&client).read(&mut buffer) {
                        (&client).write_all(&buffer[..length]).unwrap();
                    }
                });
            }
        });
        url
    }

    /// One that waits for what comes, however busy the machine is.
    fn client(proxy: &Proxy) -> TcpStream {
        let client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client
    }

    /// One that waits for what does not come.
    fn impatient(proxy: &Proxy) -> TcpStream {
        let client = client(proxy);
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client
    }

    fn ask(mut client: &TcpStream, what: &[u8]) -> io::Result<Vec<u8>> {
        client.write_all(what)?;
        let mut answer = vec![0; what.len()];
        client.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn everything_passes_until_a_fault_is_named() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        assert_eq!(proxy.url(), format!("echo://user:p@ss@{}/path?a=1", proxy.address()));
        let one = client(&proxy);
        assert_eq!(ask(&one, b"hello").unwrap(), b"hello");
        assert_eq!((proxy.lost(), proxy.requests(), proxy.open()), (0, 1, 1));
    }

    #[test]
    fn the_reply_to_one_request_is_lost_by_a_reset_and_the_next_is_not() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        let (one, other) = (client(&proxy), client(&proxy));
        proxy.lose_reply_to(b"claim", Lost::ByReset);
        assert_eq!(ask(&one, b"read").unwrap(), b"read");
        assert_eq!(kind(ask(&one, b"a claim")), io::ErrorKind::UnexpectedEof);
        assert_eq!(ask(&other, b"a claim").unwrap(), b"a claim");
        assert_eq!(proxy.lost(), 1);
    }

    #[test]
    fn a_reply_lost_in_silence_leaves_the_connection_open_and_mute() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        let one = impatient(&proxy);
        proxy.lose_reply_to(b"", Lost::InSilence);
        for what in [b"one", b"two"] {
            let seen = kind(ask(&one, what));
            assert!(matches!(seen, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{seen}");
        }
        // The reply to the first may still be on its way to where it is lost.
        let began = Instant::now();
        while proxy.lost() == 0 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((proxy.lost(), proxy.open()), (1, 1));
    }

    #[test]
    fn a_cut_breaks_what_is_open_and_a_refusal_what_is_new() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        let one = client(&proxy);
        ask(&one, b"1").unwrap();
        assert_eq!(proxy.cut(), 1);
        assert!(ask(&one, b"1").is_err());
        proxy.refuse(true);
        assert!(ask(&client(&proxy), b"1").is_err());
        proxy.refuse(false);
        assert_eq!(ask(&client(&proxy), b"1").unwrap(), b"1");
    }

    #[test]
    fn what_was_frozen_comes_when_it_thaws() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        let mut one = impatient(&proxy);
        proxy.freeze(true);
        assert!(ask(&one, b"1").is_err());
        proxy.freeze(false);
        one.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut late = [0; 1];
        one.read_exact(&mut late).unwrap();
        assert_eq!(&late, b"1");
    }

    #[test]
    fn a_delay_is_kept_and_no_proxy_that_is_dropped_waits_for_it() {
        let proxy = Proxy::before(Kind::Redis, &echo()).unwrap();
        let one = client(&proxy);
        one.set_read_timeout(None).unwrap();
        proxy.delay(Duration::from_millis(50));
        let began = Instant::now();
        ask(&one, b"1").unwrap();
        assert!(began.elapsed() >= Duration::from_millis(50));
        proxy.delay(Duration::from_secs(600));
        (&one).write_all(b"1").unwrap();
        drop(proxy);
        assert!((&one).read_exact(&mut [0; 1]).is_err());
    }
}
