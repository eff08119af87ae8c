//! Requests that are too large, too slow, or break off.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use idemkit_http::{Body, BoxError, OversizedRequest};
use rstest::rstest;

use crate::support::{ask, before, builder, charges, post};

fn from(stream: impl futures_util::Stream<Item = Result<Bytes, &'static str>> + Send + 'static) -> Request<Body> {
    let frames = stream.map(|piece| piece.map(Frame::data).map_err(BoxError::from));
    post("k", "").map(|_| Body::new(StreamBody::new(Box::pin(frames))))
}

/// A byte a second, for ever.
fn slow() -> impl futures_util::Stream<Item = Result<Bytes, &'static str>> + Send + 'static {
    futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some((Ok(Bytes::from_static(b"x")), ()))
    })
}

#[rstest]
#[case(10, 201, 1)]
#[case(11, 413, 0)]
#[tokio::test(start_paused = true)]
async fn a_request_over_the_limit_is_refused_by_what_flows(
    #[case] bytes: usize,
    #[case] status: u16,
    #[case] times: u32,
) {
    let layer = builder().request_bytes_max(10, OversizedRequest::Refuse).build().unwrap();
    let (service, ran) = charges(&layer, 201);
    let mut request = from(futures_util::stream::iter(vec![Ok(Bytes::from_static(b"x")); bytes]));
    request.headers_mut().insert("content-length", "1".parse().unwrap());
    let answer = ask(&service, request).await;
    assert_eq!((answer.status, ran.times()), (status, times));
    if status == 413 {
        assert_eq!(answer.problem(), "about:blank");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_is_refused_without_being_kept() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let endless = futures_util::stream::repeat_with(|| Ok(Bytes::from_static(&[7; 65_536])));
    assert_eq!((ask(&service, from(endless)).await.status, ran.times()), (413, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_over_the_limit_may_pass_without_protection() {
    let layer = builder().request_bytes_max(10, OversizedRequest::PassUnprotected).build().unwrap();
    let (service, ran) = charges(&layer, 201);
    for times in 1..=2 {
        let answer = ask(&service, post("k", vec![b'x'; 1_000])).await;
        assert_eq!((answer.status, answer.body.len(), ran.times()), (201, "charged: ".len() + 1_000, times));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_a_byte_a_second_is_given_up() {
    let (service, ran) = charges(&builder().request_within(Duration::from_secs(20)).build().unwrap(), 201);
    let began = tokio::time::Instant::now();
    let answer = ask(&service, from(slow())).await;
    assert_eq!((answer.status, answer.problem().as_str(), ran.times()), (408, "about:blank", 0));
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_is_not_handled() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let broken = futures_util::stream::iter([Ok(Bytes::from_static(b"half")), Err("broken")]);
    assert_eq!((ask(&service, from(broken)).await.status, ran.times()), (400, 0));
    assert_eq!((ask(&service, post("k", "half")).await.status, ran.times()), (201, 1), "nothing was claimed");
}

/// What has no key is not looked at: it streams.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_streams_through() {
    let service = before(&builder().build().unwrap(), |request: Request<Body>| async move {
        let mut body = request.into_body();
        let mut read = 0;
        while read < 100 {
            read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
        http::Response::new(Body::from(Bytes::from_static(b"enough")))
    });
    let mut request = from(slow());
    request.headers_mut().remove("idempotency-key");
    assert_eq!(&ask(&service, request).await.body[..], b"enough");
}
