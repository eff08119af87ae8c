//! MongoDB's `hello` by OP_MSG, and the founding of a replica set of one.

use super::bson::{Document, Value, field};
use super::{ANSWER_BYTES_MAX, expect};
use std::io::{self, Read, Write};

const OP_MSG: i32 = 2013;
/// Header, flags, and the kind of the one section: what comes before the document.
const BEFORE_DOCUMENT: usize = 21;

/// Ready is who may be written to. A server that was started as a member of a replica set which is not founded yet is
/// told to found it: that needs no shell beside it, neither here nor in its container. `port` is where it reaches
/// itself.
pub(super) fn probe(server: &mut (impl Read + Write), port: u16) -> io::Result<()> {
    let hello = ask(server, Document::default().int("hello", 1))?;
    if field(&hello, "isWritablePrimary") == Some(Value::Bool(true)) {
        return Ok(());
    }
    let waits_for_its_set = field(&hello, "isreplicaset") == Some(Value::Bool(true));
    if waits_for_its_set {
        let answer = ask(server, found_set(port))?;
        // Two may ask at once: the one who is told that it is founded already asks again, as does everybody.
        return Err(not_yet(format!("told to found its replica set: {}", reason(&answer))));
    }
    Err(not_yet(format!("not the primary: {}", reason(&hello))))
}

fn found_set(port: u16) -> Document {
    let member = Document::default().int("_id", 0).string("host", &format!("localhost:{port}"));
    let members = Document::default().document("0", member);
    Document::default().document("replSetInitiate", Document::default().string("_id", "rs0").array("members", members))
}

fn ask(server: &mut (impl Read + Write), command: Document) -> io::Result<Vec<u8>> {
    let document = command.string("$db", "admin").bytes();
    let length = i32::try_from(BEFORE_DOCUMENT + document.len()).map_err(io::Error::other)?;
    let mut message = vec![];
    for number in [length, 1, 0, OP_MSG, 0] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(&document);
    server.write_all(&message)?;

    let mut head = [0; BEFORE_DOCUMENT];
    server.read_exact(&mut head)?;
    let length = i32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let length = usize::try_from(length).unwrap_or(0);
    expect(&head, head[12..16] == OP_MSG.to_le_bytes() && (BEFORE_DOCUMENT..ANSWER_BYTES_MAX).contains(&length))?;
    let mut answer = vec![0; length - BEFORE_DOCUMENT];
    server.read_exact(&mut answer)?;
    Ok(answer)
}

fn reason(answer: &[u8]) -> String {
    match (field(answer, "ok"), field(answer, "errmsg")) {
        (_, Some(Value::Text(message))) => message.to_owned(),
        (ok, _) => format!("ok: {ok:?}"),
    }
}

fn not_yet(seen: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one document after another, and keeps what was asked.
    struct Script(Vec<u8>, io::Cursor<Vec<u8>>);

    fn script(answers: impl IntoIterator<Item = Vec<u8>>) -> Script {
        let mut bytes = vec![];
        for document in answers {
            let length = i32::try_from(BEFORE_DOCUMENT + document.len()).unwrap();
            for number in [length, 2, 1, OP_MSG, 0] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.push(0);
            bytes.extend_from_slice(&document);
        }
        Script(vec![], io::Cursor::new(bytes))
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

    /// A boolean element is one that requests never need.
    fn with_flag(name: &str, value: bool) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0x08];
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&[0, u8::from(value), 0]);
        bytes[0] = u8::try_from(bytes.len()).unwrap();
        bytes
    }

    #[test]
    fn a_primary_is_ready_and_asked_for_nothing_more() {
        let mut server = script([with_flag("isWritablePrimary", true)]);
        assert!(probe(&mut server, 27017).is_ok());
        assert!(!server.0.windows(15).any(|bytes| bytes == b"replSetInitiate"));
    }

    #[test]
    fn a_secondary_is_not_ready() {
        let mut server = script([with_flag("isWritablePrimary", false)]);
        assert!(probe(&mut server, 27017).is_err());
        assert!(!server.0.windows(15).any(|bytes| bytes == b"replSetInitiate"));
    }

    #[test]
    fn a_member_without_a_set_founds_it_and_is_asked_again() {
        let mut server = script([with_flag("isreplicaset", true), Document::default().int("ok", 1).bytes()]);
        assert!(probe(&mut server, 27018).is_err());
        for said in [&b"replSetInitiate"[..], b"localhost:27018"] {
            assert!(server.0.windows(said.len()).any(|bytes| bytes == said));
        }
    }

    #[test]
    fn what_is_no_mongo_is_not_read_further() {
        let mut server = Script(vec![], io::Cursor::new(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
        assert!(probe(&mut server, 27017).is_err());
    }
}
