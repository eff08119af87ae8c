//! tonic, whose services are `tower` services over `http`. The code that a `.proto` would make is written out.

use std::{convert::Infallible, future::Future, pin::Pin, task::Poll};

use axum::http;
use tokio::{net::TcpListener, task::AbortHandle};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Bytes, Service},
    server::{Grpc, NamedService, UnaryService},
    transport::{Channel, Server, server::TcpIncoming},
};

use crate::support::{Charged, On, engine, single};

/// Messages that are text.
#[derive(Clone, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(to, text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let length = bytes::Buf::remaining(from);
        let bytes: Bytes = bytes::Buf::copy_to_bytes(from, length);
        String::from_utf8(bytes.to_vec()).map(Some).map_err(|_| Status::invalid_argument("no text"))
    }
}

#[derive(Clone)]
struct Charges(Charged);

impl NamedService for Charges {
    const NAME: &'static str = "tests.Charges";
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl UnaryService<String> for Charges {
    type Response = String;
    type Future = Boxed<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let charged = self.0.clone();
        Box::pin(async move {
            let number = charged.once_more();
            if number == 1 && request.metadata().contains_key("idempotency-key") {
                return Err(Status::unavailable("the first call under a key fails"));
            }
            Ok(Response::new(format!("charged {} by {number}", request.into_inner())))
        })
    }
}

impl Service<http::Request<Body>> for Charges {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(Grpc::new(Text).unary(service, request).await) })
    }
}

async fn call(channel: &Channel, key: Option<&str>) -> Result<String, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = Request::new("5 EUR".to_owned());
    if let Some(key) = key {
        request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    }
    let path = http::uri::PathAndQuery::from_static("/tests.Charges/Charge");
    client.unary(request, path, Text).await.map(Response::into_inner)
}

/// The first call is answered with its trailers. A call under the same key is not made again, and is told so: a replay would
/// have no status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_a_key_is_made_once() {
    let (channel, charged, serving) = serve().await;
    assert_eq!(call(&channel, None).await.unwrap(), "charged 5 EUR by 1");
    assert_eq!(call(&channel, Some("k")).await.unwrap(), "charged 5 EUR by 2");
    let again = call(&channel, Some("k")).await;
    assert!(again.is_err(), "{again:?}");
    assert_eq!(charged.times(), 2);
    serving.abort();
}

/// Its answer is 200, and its status is among the headers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_failed_may_be_made_again() {
    let (channel, charged, serving) = serve().await;
    assert_eq!(call(&channel, Some("k")).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert_eq!(call(&channel, Some("k")).await.unwrap(), "charged 5 EUR by 2");
    assert_eq!(charged.times(), 2);
    serving.abort();
}

async fn serve() -> (Channel, Charged, AbortHandle) {
    let charged = Charged::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let layer = single(engine(On::Memory).await).build().unwrap();
    let server = Server::builder().layer(layer).add_service(Charges(charged.clone()));
    let serving = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    (channel, charged, serving.abort_handle())
}
