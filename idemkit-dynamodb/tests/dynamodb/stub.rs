//! A front end that answers as it is told, and otherwise passes requests on to the server: for what no emulator does.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use aws_smithy_types::{DateTime, date_time::Format};
use idemkit_servers::Kind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// An answer, to a request whose target ends with `to`.
pub(crate) struct Answer {
    pub(crate) to: &'static str,
    pub(crate) status: u16,
    /// How many such requests are passed on before.
    after: usize,
    /// Header lines beside the usual ones, each with its end.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// An error as DynamoDB words it.
    pub(crate) fn error(to: &'static str, status: u16, code: &str, message: &str) -> Self {
        let body = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}"#);
        Self::new(to, status, body)
    }

    pub(crate) fn new(to: &'static str, status: u16, body: impl Into<String>) -> Self {
        Self { to, status, after: 0, head: String::new(), body: body.into() }
    }

    /// A transaction's cancellation, with one reason an item: its code, and a message.
    pub(crate) fn cancelled(reasons: &[(&str, &str)]) -> Self {
        let reasons = reasons.iter().map(|(code, message)| format!(r#"{{"Code":"{code}","Message":"{message}"}}"#));
        let reasons = reasons.collect::<Vec<_>>().join(",");
        let kind = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
        let body = format!(r#"{{"__type":"{kind}","Message":"cancelled","CancellationReasons":[{reasons}]}}"#);
        Self::new("TransactWriteItems", 400, body)
    }

    /// With a date that is so far ahead, and as DynamoDB itself sends it or as a proxy does.
    pub(crate) fn dated(mut self, ahead_secs: i64, by_dynamodb: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let date = DateTime::from_secs(i64::try_from(now).unwrap() + ahead_secs).fmt(Format::HttpDate).unwrap();
        let id = if by_dynamodb { "x-amzn-RequestId: 7\r\n" } else { "" };
        self.head = format!("Date: {date}\r\n{id}");
        self
    }
}

/// The front end. It ends when this is dropped.
pub(crate) struct Stub {
    address: SocketAddr,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    /// What the dates of the server's replies are moved by.
    ahead_secs: Arc<AtomicI64>,
    _serving: JoinSet<()>,
}

impl Stub {
    pub(crate) async fn before(url: &str) -> Self {
        let server = idemkit_servers::address(Kind::DynamoDb, url).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Mutex::new(VecDeque::new()));
        let mut serving = JoinSet::new();
        let ahead_secs = Arc::new(AtomicI64::new(0));
        let (told, ahead) = (Arc::clone(&answers), Arc::clone(&ahead_secs));
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (told, ahead) = (Arc::clone(&told), Arc::clone(&ahead));
                connections.spawn(async move { _ = serve(client, server, &told, &ahead).await });
            }
        });
        Self { address, answers, ahead_secs, _serving: serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next answers, each to the first request that has its target.
    pub(crate) fn will_answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.answers.lock().unwrap().extend(answers);
    }

    /// Passes so many requests of its target on, and then answers.
    pub(crate) fn will_answer_after(&self, passed: usize, answer: Answer) {
        self.will_answer([Answer { after: passed, ..answer }]);
    }

    /// From now on the server's clock reads so much more.
    pub(crate) fn step_clock(&self, secs: i64) {
        self.ahead_secs.fetch_add(secs, Ordering::SeqCst);
    }

    /// How many of them were not asked for yet.
    pub(crate) fn left(&self) -> usize {
        self.answers.lock().unwrap().len()
    }
}

/// Serves one connection.
async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    told: &Mutex<VecDeque<Answer>>,
    ahead_secs: &AtomicI64,
) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    loop {
        let request = message(&mut client).await?;
        let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let asked =
            |answer: &Answer| head.contains(&format!("dynamodb_20120810.{}\r\n", answer.to.to_ascii_lowercase()));
        let answer = {
            let mut told = told.lock().unwrap();
            match told.iter().position(asked) {
                Some(at) if told[at].after > 0 => {
                    told[at].after -= 1;
                    None
                }
                at => at.and_then(|at| told.remove(at)),
            }
        };
        let reply = match answer {
            Some(Answer { status, head, body, .. }) => format!(
                "HTTP/1.1 {status} As Told\r\nContent-Type: application/x-amz-json-1.0\r\n{head}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into_bytes(),
            None => {
                server.write_all(&request).await?;
                dated(message(&mut server).await?, ahead_secs.load(Ordering::SeqCst))
            }
        };
        client.write_all(&reply).await?;
    }
}

/// A reply with its date moved.
fn dated(reply: Vec<u8>, ahead_secs: i64) -> Vec<u8> {
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(reply[..end].to_vec()).unwrap();
    let lines = head.split("\r\n").map(|line| match line.split_once(':') {
        Some((name, date)) if name.eq_ignore_ascii_case("date") => {
            let date = DateTime::from_str(date.trim(), Format::HttpDate).unwrap();
            let date = DateTime::from_secs(date.secs() + ahead_secs).fmt(Format::HttpDate).unwrap();
            format!("date: {date}")
        }
        _ => line.to_owned(),
    });
    let mut dated = lines.collect::<Vec<_>>().join("\r\n").into_bytes();
    dated.extend_from_slice(&reply[end..]);
    dated
}

/// One request or reply, whole.
async fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![];
    let mut head_ends = None;
    loop {
        if let Some(end) =
            head_ends.or_else(|| message.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4))
        {
            head_ends = Some(end);
            let head = String::from_utf8_lossy(&message[..end]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            if message.len() >= end + length.unwrap_or(0) {
                return Ok(message);
            }
        }
        if from.read_buf(&mut message).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
