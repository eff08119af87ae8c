//! Bodies: one type for all, counted as they stream. What a header says of their length counts for nothing.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, LengthLimitError, combinators::UnsyncBoxBody};
use tokio::{
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

/// An error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of requests that go in, and of answers that come out.
// A type of its own, and no alias: the compiler would ask for `Send` of services for every lifetime of the error inside.
pub struct Body {
    /// What was read already.
    begin: Option<Bytes>,
    rest: UnsyncBoxBody<Bytes, BoxError>,
}

impl Body {
    /// Any body.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        Self { begin: None, rest: UnsyncBoxBody::new(Unified { body }) }
    }

    /// A body that is there whole.
    pub(crate) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        match trailers {
            None => Self::new(Full::new(data)),
            Some(trailers) => Self::ends_with(data, Ok(Frame::trailers(trailers))),
        }
    }

    /// A body that breaks off behind its begin.
    pub(crate) fn broken(begin: Bytes, error: BoxError) -> Self {
        Self::ends_with(begin, Err(error))
    }

    fn ends_with(begin: Bytes, last: Result<Frame<Bytes>, BoxError>) -> Self {
        Self { begin: Some(begin), rest: Last(Some(last)).boxed_unsync() }
    }

    /// Reads up to `bytes_max`, and for so long.
    pub(crate) async fn read(mut self, bytes_max: u64, within: Duration) -> Read {
        let ends = Instant::now().checked_add(within);
        let (mut kept, mut trailers) = (Kept::default(), None);
        loop {
            let frame = match until(ends, self.rest.frame()).await {
                None => return Read::Late(self.after(kept.into_bytes())),
                Some(None) => return Read::Whole { data: kept.into_bytes(), trailers },
                Some(Some(Err(error))) => {
                    return Read::Broken { is_limit: is_limit(&error), body: Self::broken(kept.into_bytes(), error) };
                }
                Some(Some(Ok(frame))) => frame,
            };
            match frame.into_data() {
                Ok(data) => kept.push(data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
            if kept.len() > bytes_max {
                return Read::Longer(self.after(kept.into_bytes()));
            }
            // A body that always has one more frame, an empty one even, is never waited for, nor its end.
            consume_budget().await;
            let is_late = ends.is_some_and(|ends| ends <= Instant::now());
            if is_late && trailers.is_none() && !self.rest.is_end_stream() {
                return Read::Late(self.after(kept.into_bytes()));
            }
        }
    }

    fn after(self, begin: Bytes) -> Self {
        Self { begin: Some(begin), rest: self.rest }
    }
}

/// A body that was read, as far as it may be.
#[derive(Debug)]
pub(crate) enum Read {
    /// All of it.
    Whole { data: Bytes, trailers: Option<HeaderMap> },
    /// It has more bytes than may be kept.
    Longer(Body),
    /// It took longer than it may.
    Late(Body),
    /// It broke off: by a limit of another layer's, or otherwise.
    Broken { is_limit: bool, body: Body },
}

/// What it comes to, or nothing where it takes until `ends`. A time beyond what the clock counts never comes.
async fn until<F: Future>(ends: Option<Instant>, future: F) -> Option<F::Output> {
    match ends {
        Some(ends) => timeout_at(ends, future).await.ok(),
        None => Some(future.await),
    }
}

fn is_limit(error: &BoxError) -> bool {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(it) = error {
        if it.is::<LengthLimitError>() {
            return true;
        }
        error = it.source();
    }
    false
}

/// Bytes that were read. A body that comes in one piece, as most do, is not copied.
#[derive(Default)]
struct Kept {
    first: Bytes,
    all: BytesMut,
}

impl Kept {
    fn push(&mut self, data: Bytes) {
        if self.all.is_empty() && self.first.is_empty() {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&data);
    }

    fn len(&self) -> u64 {
        u64::try_from(self.first.len() + self.all.len()).unwrap_or(u64::MAX)
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

pin_project_lite::pin_project! {
    /// A body in pieces of one type. (`map_frame` forgets how long it is.)
    struct Unified<B> {
        #[pin]
        body: B,
    }
}

impl<B> http_body::Body for Unified<B>
where
    B: http_body::Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.project().body.poll_frame(context).map(|frame| {
            frame.map(|frame| {
                let frame = frame.map_err(Into::into)?;
                Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One frame, or an error. It tells no length, not even none: a body of a known length is sent without its trailers over HTTP/1.1.
struct Last(Option<Result<Frame<Bytes>, BoxError>>);

impl http_body::Body for Last {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.take())
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.begin.take() {
            Some(begin) if !begin.is_empty() => Poll::Ready(Some(Ok(Frame::data(begin)))),
            _ => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begin.as_ref().is_none_or(Bytes::is_empty) && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let begin = self.begin.as_ref().map_or(0, |begin| u64::try_from(begin.len()).unwrap_or(u64::MAX));
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(begin));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(begin)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// Empty.
impl Default for Body {
    fn default() -> Self {
        Self::from(Bytes::new())
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::whole(data, None)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("size_hint", &self.size_hint()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use rstest::rstest;

    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn no_limit_of_time_is_too_long() {
        let read = Body::from(Bytes::from_static(b"data")).read(10, Duration::MAX).await;
        assert!(matches!(read, Read::Whole { .. }), "{read:?}");
    }

    /// A body of these pieces, which then ends, never goes on, or breaks off.
    fn pieces(pieces: &[&'static str], end: &str) -> Body {
        let frames =
            pieces.iter().map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes())))).collect::<Vec<_>>();
        let frames = futures_util::stream::iter(frames);
        match end {
            "ends" => Body::new(StreamBody::new(frames)),
            "hangs" => {
                Body::new(StreamBody::new(futures_util::StreamExt::chain(frames, futures_util::stream::pending())))
            }
            _ => {
                let broken = futures_util::stream::once(async { Err::<Frame<Bytes>, BoxError>("broken".into()) });
                Body::new(StreamBody::new(futures_util::StreamExt::chain(frames, Box::pin(broken))))
            }
        }
    }

    #[rstest]
    #[case(&[], "ends", "whole")]
    #[case(&["12345", "67890"], "ends", "whole")]
    #[case(&["1234567890"], "ends", "whole")]
    #[case(&["12345678901"], "ends", "longer")]
    #[case(&["12345", "678901", "more"], "ends", "longer")]
    #[case(&["", "12345"], "hangs", "late")]
    #[case(&["12345", "6"], "breaks", "broken")]
    #[tokio::test(start_paused = true)]
    async fn a_body_is_read_up_to_its_limits_and_nothing_of_it_is_lost(
        #[case] given: &[&'static str],
        #[case] end: &str,
        #[case] how: &str,
    ) {
        let (seen, mut body) = match pieces(given, end).read(10, SOON).await {
            Read::Whole { data, trailers } => ("whole", Body::whole(data, trailers)),
            Read::Longer(body) => ("longer", body),
            Read::Late(body) => ("late", body),
            Read::Broken { body, .. } => ("broken", body),
        };
        assert_eq!(seen, how);
        let mut read = vec![];
        let last = loop {
            match tokio::time::timeout(SOON, body.frame()).await {
                Ok(Some(Ok(frame))) => read.extend_from_slice(&frame.into_data().unwrap()),
                Ok(Some(Err(_))) => break "breaks",
                Ok(None) => break "ends",
                Err(_) => break "hangs",
            }
        };
        assert_eq!((read, last), (given.concat().into_bytes(), end));
    }

    #[tokio::test(start_paused = true)]
    async fn trailers_and_the_size_come_through() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let Read::Whole { data, trailers } = Body::whole("data".into(), Some(trailers)).read(10, SOON).await else {
            panic!("it is short");
        };
        let collected = Body::whole(data, trailers).collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        let Read::Longer(longer) = Body::from(Bytes::from_static(b"data")).read(3, SOON).await else {
            panic!("it is longer");
        };
        assert_eq!((longer.size_hint().exact(), longer.is_end_stream()), (Some(4), false));
    }

    #[tokio::test]
    async fn a_body_that_is_never_waited_for_is_late_all_the_same() {
        let empty = futures_util::stream::repeat_with(|| Ok::<_, BoxError>(Frame::data(Bytes::new())));
        let read = Body::new(StreamBody::new(empty)).read(10, Duration::from_millis(20));
        let read = tokio::time::timeout(Duration::from_secs(10), read).await.unwrap();
        assert!(matches!(read, Read::Late(_)), "{read:?}");
    }

    #[test]
    fn a_body_with_trailers_tells_no_length_which_would_be_sent_instead_of_them() {
        let (body, without) = (Body::whole("data".into(), Some(HeaderMap::new())), Body::whole("data".into(), None));
        assert_eq!((body.size_hint().exact(), without.size_hint().exact()), (None, Some(4)));
    }

    /// A slow client must not make each byte an allocation.
    #[tokio::test(start_paused = true)]
    async fn many_small_pieces_are_kept_as_one() {
        let bytes = vec!["x"; 10_000];
        match pieces(&bytes, "ends").read(10_000, SOON).await {
            Read::Whole { data, .. } => assert_eq!(data.len(), 10_000),
            other => panic!("{other:?}"),
        }
    }
}
