//! What reaches `tracing` of each request. A binary of its own: whether a span is of interest is remembered for the whole process,
//! and where other tests run at the same time, one of their threads may be the first that is asked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use idemkit_core::{Engine, MemoryStore};
use idemkit_http::{Body, IdempotencyLayer};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing::{Instrument as _, field::Visit, span};
use tracing_subscriber::{Layer, layer::SubscriberExt as _, registry::LookupSpan};

/// Remembers the fields of every span that is called `idempotency`, when it closes.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(
        &self,
        attributes: &span::Attributes<'_>,
        id: &span::Id,
        context: tracing_subscriber::layer::Context<'_, S>,
    ) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: tracing_subscriber::layer::Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_close(&self, id: span::Id, context: tracing_subscriber::layer::Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.name() == "idempotency" {
            let parent = span.parent().map(|parent| parent.name()).unwrap_or_default();
            let fields = span.extensions().get::<Fields>().unwrap().0.clone();
            self.0.lock().unwrap().push(format!("{fields}parent={parent}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_says_what_was_decided_and_never_a_raw_key() {
    let spans = Spans::default();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let layer = IdempotencyLayer::builder(Engine::new(MemoryStore::new())).single_tenant().no_wait().build().unwrap();
    let charged =
        service_fn(async |_| Ok::<_, Infallible>(Response::builder().status(201).body(Body::default()).unwrap()));
    let service = layer.layer(charged);
    async {
        for (key, body) in [("raw-key-4711", &b"5"[..]), ("raw-key-4711", b"5"), ("raw-key-4711", b"6")] {
            let request = Request::post("/charges")
                .header("idempotency-key", key)
                .body(Body::from(Bytes::from_static(body)))
                .unwrap();
            service.clone().oneshot(request).await.unwrap();
        }
    }
    .instrument(tracing::info_span!("request"))
    .await;
    let spans = spans.0.lock().unwrap().clone();
    let key = idemkit_core::EffectiveKey::http("raw-key-4711", idemkit_core::ANONYMOUS_SCOPE, "POST", "/charges");
    assert_eq!(spans.len(), 3, "{spans:?}");
    for (span, decision) in
        spans.iter().zip(["decision=\"new\" attempt=1", "decision=\"replayed\"", "decision=\"payload_mismatch\""])
    {
        for part in [decision, &format!("key={key}"), "store=\"memory\"", "surface=\"http\"", "parent=request"] {
            assert!(span.contains(part), "{part} is missing in {span}");
        }
        assert!(!span.contains("4711"), "{span}");
    }
}
