//! axum's routers: nested ones, routes of their own, and what a handler asks for.

use axum::{
    Router,
    http::StatusCode,
    routing::{get, post},
};
use idemkit::http::RequestClaim;

use crate::support::{Charged, On, Server, charge, charges, engine, single};

async fn ask(server: &Server, path: &str, key: Option<&str>) -> (u16, String, bool) {
    let mut request = reqwest::Client::new().post(server.url(path)).body("5");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    let answer = request.send().await.unwrap();
    let replayed = answer.headers().contains_key("idempotency-replayed");
    (answer.status().as_u16(), answer.text().await.unwrap(), replayed)
}

/// Field report 19: the layer inside of two nested routers, which leave the same path of two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_nested_routers_the_original_path_counts() {
    let layer = single(engine(On::Memory).await).build().unwrap();
    let (here, there) = (Charged::default(), Charged::default());
    let inner = |charged: &Charged| charges(charged).layer(layer.clone());
    let router = Router::new().nest("/here", inner(&here)).nest("/there", Router::new().nest("/deep", inner(&there)));
    let server = Server::serve(router, layer.clone()).await;
    for replayed in [false, true] {
        for path in ["/here/charges", "/there/deep/charges"] {
            assert_eq!(ask(&server, path, Some("k")).await, (201, "charged: 5".to_owned(), replayed), "{path}");
        }
    }
    assert_eq!((here.times(), there.times()), (1, 1));
}

/// A route of its own has a layer of its own, and the route beside it has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_may_be_one_routes() {
    let layer = single(engine(On::Memory).await).require_key(true).build().unwrap();
    let charged = Charged::default();
    let router = Router::new()
        .route("/charges", post(charge).layer(layer.clone()))
        .route("/unprotected", post(|| async { "as ever" }))
        .route("/misplaced", post(charge))
        .with_state(charged.clone());
    let server = Server::serve(router, layer).await;
    assert_eq!(ask(&server, "/unprotected", Some("k")).await, (200, "as ever".to_owned(), false));
    let (status, body, _) = ask(&server, "/charges", None).await;
    assert!(status == 400 && body.contains("urn:idemkit:missing-key"), "{body}");
    assert_eq!(ask(&server, "/charges", Some("k")).await.0, 201);
    let (status, ..) = ask(&server, "/misplaced", Some("k")).await;
    assert_eq!(
        (status, charged.times()),
        (500, 1),
        "a handler that asks for a claim where there is no layer does not run"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_asks_for_its_claim_needs_a_key_and_one_that_may_have_none_does_not() {
    let optional = |claim: Option<RequestClaim>| async move { claim.map_or(0, |claim| claim.attempt()).to_string() };
    let charged = Charged::default();
    let router = charges(&charged).route("/optional", post(optional).get(optional));
    let layer = single(engine(On::Memory).await).documentation("https://example.com/keys");
    let server = Server::start(layer, router).await;
    let (status, body, _) = ask(&server, "/charges", None).await;
    assert!(status == 400 && body.contains("urn:idemkit:missing-key") && charged.times() == 0, "{body}");
    let refused = reqwest::Client::new().post(server.url("/charges")).send().await.unwrap();
    assert_eq!(refused.headers()["link"], "<https://example.com/keys>; rel=\"describedby\"");
    assert_eq!(ask(&server, "/optional", None).await.1, "0");
    assert_eq!(ask(&server, "/optional", Some("k")).await.1, "1");
    let other_method = reqwest::get(server.url("/optional")).await.unwrap();
    assert_eq!((other_method.status().as_u16(), other_method.text().await.unwrap().as_str()), (200, "0"));
}

/// The same layer on a router and on the one it is nested in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_on_both_of_two_nested_routers_is_one() {
    let layer = single(engine(On::Memory).await).build().unwrap();
    let charged = Charged::default();
    let router = Router::new().nest("/api", charges(&charged).layer(layer.clone())).layer(layer.clone());
    let server = Server::serve(router, layer).await;
    for replayed in [false, true] {
        assert_eq!(ask(&server, "/api/charges", Some("k")).await, (201, "charged: 5".to_owned(), replayed));
    }
    assert_eq!(charged.times(), 1);
}

/// What the layer does not look at is as it was, its length too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_methods_pass_as_they_are() {
    let router = Router::new().route("/", get(|| async { (StatusCode::IM_A_TEAPOT, "short and stout") }));
    let server = Server::start(single(engine(On::Memory).await), router).await;
    let answer = reqwest::Client::new().get(server.url("/")).header("Idempotency-Key", "k").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.content_length()), (418, Some(15)));
}
