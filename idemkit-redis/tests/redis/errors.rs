//! What the server refuses, and what is said of it.

use std::time::Duration;

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreError,
    StoreErrorKind,
};
use idemkit_redis::{BuildError, RedisStore};
use rstest::rstest;

use crate::support::{
    acquired, claim, completion, connect, key, own, patient, secs, store, unique, until, url, waited_in_vain,
};

fn all_of(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[rstest]
#[case::a_wrong_password("redis://:wr0ngpassw0rd@", StoreErrorKind::Misconfigured)]
#[case::no_such_user("redis://nobody:wr0ngpassw0rd@", StoreErrorKind::Misconfigured)]
#[case::may_do_nothing("redis://nothing:wr0ngpassw0rd@", StoreErrorKind::Misconfigured)]
#[tokio::test]
async fn who_is_not_let_in_is_misconfigured_and_no_password_is_told(
    #[case] scheme: &str,
    #[case] kind: StoreErrorKind,
) {
    let server = own(&[]);
    let mut admin = connect(&server.url()).await;
    let mut set = redis::cmd("ACL");
    set.arg(&["SETUSER", "nothing", "on", ">wr0ngpassw0rd"]).exec_async(&mut admin).await.unwrap();
    let url = server.url().replace("redis://", scheme);
    if scheme.contains("//:") {
        redis::cmd("CONFIG").arg(&["SET", "requirepass", "another"]).exec_async(&mut admin).await.unwrap();
    }
    let builder = patient(RedisStore::builder().url(&url));
    let shown = format!("{builder:?}");
    let store = builder.build().unwrap();
    let error = store.claim(&key("a raw key"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (kind, false), "{}", all_of(&error));
    for text in [shown, format!("{store:?}"), all_of(&error)] {
        assert!(!text.contains("wr0ngpassw0rd") && !text.contains("a raw key"), "{text}");
    }
}

#[rstest]
#[case("redis://:s3cret@[", "s3cret")]
#[case("rediss+x://:s3cret@host", "s3cret")]
#[case("http://:s3cret@host", "s3cret")]
fn a_url_that_cannot_be_read_is_not_shown(#[case] url: &str, #[case] secret: &str) {
    let error = RedisStore::new(url).unwrap_err();
    assert!(matches!(error, BuildError::InvalidUrl(_)));
    assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
}

#[rstest]
#[case("")]
#[case("with{braces}")]
#[case("with\nbreaks")]
fn a_namespace_that_cannot_be_one_is_refused(#[case] namespace: &str) {
    let refused = store("redis://127.0.0.1").namespace(namespace).build();
    assert!(matches!(refused, Err(BuildError::InvalidNamespace { .. })));
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_nothing_was_applied() {
    // A port that nobody listens on, and nobody else can take.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = taken.local_addr().unwrap();
    let store = store(&format!("redis://:s3cret@{address}")).build().unwrap();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{}", all_of(&error));
    assert!(!all_of(&error).contains("s3cret"));
}

#[tokio::test]
async fn a_server_that_evicts_is_misconfigured_unless_that_is_accepted() {
    let server = own(&["--maxmemory-policy", "allkeys-lru"]);
    let store = store(&server.url());
    let refused = store.build().unwrap().claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((refused.kind(), refused.may_be_applied()), (StoreErrorKind::Misconfigured, false));
    assert!(refused.to_string().contains("allkeys-lru") && refused.to_string().contains("noeviction"), "{refused}");

    // Seen by INFO, where CONFIG is not to be had.
    let mut admin = connect(&server.url()).await;
    let may = ["SETUSER", "managed", "on", ">p", "~*", "&*", "+@all", "-config"];
    redis::cmd("ACL").arg(&may).exec_async(&mut admin).await.unwrap();
    let managed = server.url().replace("redis://", "redis://managed:p@");
    let refused = crate::support::store(&managed).build().unwrap().claim(&key("order"), &claim(secs(30))).await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Misconfigured);

    // In a cluster one node of several is enough to lose a record.
    #[cfg(feature = "cluster")]
    for at in 0..3 {
        let cluster = crate::cluster::Cluster::start().await;
        let mut admin = connect(&cluster.urls()[at]).await;
        let evict = ["SET", "maxmemory-policy", "allkeys-lru"];
        redis::cmd("CONFIG").arg(&evict).exec_async(&mut admin).await.unwrap();
        let store = patient(RedisStore::builder().cluster(cluster.urls())).namespace(unique()).build().unwrap();
        let refused = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Misconfigured, "{refused}");
    }

    let accepted = crate::support::store(&server.url()).allow_eviction(true).build().unwrap();
    acquired(accepted.claim(&key("order"), &claim(secs(30))).await.unwrap());
}

#[tokio::test]
async fn a_server_whose_memory_is_full_is_unavailable_and_what_is_held_can_be_completed_and_released() {
    let server = own(&[]);
    let store = store(&server.url()).build().unwrap();
    let (order, request, given_up) = (key("order"), claim(secs(60)), claim(secs(60)));
    acquired(store.claim(&order, &request).await.unwrap());
    acquired(store.claim(&key("given up"), &given_up).await.unwrap());
    let mut admin = connect(&server.url()).await;
    let mut limit = async |bytes: u64| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes).exec_async(&mut admin).await.unwrap();
    };
    // Less than it has already.
    limit(500_000).await;
    let error = store.claim(&key("another"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    // Who runs keeps its lease, and who waits for it waits on.
    let renewed = store.renew(&order, &Renew::new(request.token, secs(90))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(80)));
    waited_in_vain(&store, &order).await;
    // What ran must be recorded, or it would run again: the server lets a script end that has begun to write.
    let completed = store.complete(&order, &completion(request.token, "done")).await.unwrap();
    assert_eq!(completed, CompleteOutcome::Applied);
    let released = store.release(&key("given up"), &Release::new(given_up.token)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Applied);

    limit(0).await;
    let replay = store.claim(&order, &claim(secs(30))).await.unwrap();
    assert!(matches!(&replay, ClaimOutcome::Completed(record) if record.outcome.stored().unwrap().body == "done"));
    assert_eq!(acquired(store.claim(&key("another"), &claim(secs(30))).await.unwrap()).attempt, 1);
}

/// A user of the server's own, with these rules.
async fn user(server: &idemkit_servers::Local, rules: &[&str]) -> String {
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("app").arg("on").arg(">p").arg(rules);
    set.exec_async(&mut connect(&server.url()).await).await.unwrap();
    server.url().replace("redis://", "redis://app:p@")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_publish_completes_and_releases_all_the_same() {
    let server = own(&[]);
    let url = user(&server, &["~*", "resetchannels", "+@all"]).await;
    let store = store(&url).build().unwrap();
    let (done, given_up) = (claim(secs(60)), claim(secs(60)));
    acquired(store.claim(&key("done"), &done).await.unwrap());
    acquired(store.claim(&key("given up"), &given_up).await.unwrap());
    for name in ["done", "given up"] {
        waited_in_vain(&store, &key(name)).await;
    }
    let completed = store.complete(&key("done"), &completion(done.token, "")).await.unwrap();
    assert_eq!(completed, CompleteOutcome::Applied);
    let released = store.release(&key("given up"), &Release::new(given_up.token)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_may_not_do_inside_a_script_is_misconfigured() {
    let server = own(&[]);
    let url = user(&server, &["~*", "&*", "+@all", "-pexpire"]).await;
    let error = store(&url).build().unwrap().claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    // It had begun to write.
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, true), "{}", all_of(&error));
    assert!(error.to_string().contains("ACL"), "{error}");
}

#[tokio::test]
async fn a_grace_that_never_ends_is_one_that_the_server_can_count() {
    let (namespace, order) = (unique(), key("order"));
    let builder = store(&url()).namespace(&namespace).grace(Duration::MAX).take_over_margin(Duration::MAX);
    let store = builder.build().unwrap();
    acquired(store.claim(&order, &claim(secs(30))).await.unwrap());
    let name = format!("{namespace}:{order}");
    let ttl: i64 = redis::cmd("TTL").arg(&name).query_async(&mut connect(&url()).await).await.unwrap();
    assert!(ttl > 10 * 365 * 24 * 60 * 60, "{ttl}");
    let met = store.claim(&order, &claim(secs(30))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(held) if held.lease_left > Duration::from_secs(1_000)), "{met:?}");
}

#[tokio::test]
async fn a_server_that_is_busy_with_a_script_is_unavailable() {
    let server = own(&["--busy-reply-threshold", "50"]);
    let store = store(&server.url()).build().unwrap();
    acquired(store.claim(&key("first"), &claim(secs(30))).await.unwrap());
    let mut busy = connect(&server.url()).await;
    busy.set_response_timeout(Duration::from_secs(60));
    let spinning =
        tokio::spawn(async move { redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut busy).await });
    let admin = connect(&server.url()).await;
    until("the server says that it is busy", async || {
        let pong = redis::cmd("PING").exec_async(&mut admin.clone()).await;
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{}", all_of(&error));
    redis::cmd("SCRIPT").arg("KILL").exec_async(&mut connect(&server.url()).await).await.unwrap();
    spinning.await.unwrap().unwrap_err();
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
}

/// Field report 32, for what is no hash at all.
#[rstest]
#[case::text(&["SET", "KEY", "x"])]
#[case::list(&["LPUSH", "KEY", "x"])]
#[case::odd_field_names(&["HSET", "KEY", "\u{0}state", "x"])]
#[case::odd_headers(&["HSET", "KEY", "state", "COMPLETED", "fingerprint",
    "0000000000000000000000000000000000000000000000000000000000000000", "fingerprint_version", "1", "claim_token",
    "00000000000000000000000000000000", "lease_until", "99999999999999", "response_status", "200", "response_headers", "["])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_record_is_recovered_by_one_of_fifty(#[case] put: &[&str]) {
    let namespace = unique();
    let store = store(&url()).namespace(&namespace).build().unwrap();
    let name = format!("{namespace}:{}", key("order"));
    let mut admin = connect(&url()).await;
    let mut command = redis::cmd(put[0]);
    for arg in &put[1..] {
        command.arg(if *arg == "KEY" { name.as_str() } else { arg });
    }
    command.exec_async(&mut admin).await.unwrap();
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        claimers.spawn(async move { store.claim(&key("order"), &claim(secs(30))).await.unwrap() });
    }
    let mut won = vec![];
    while let Some(outcome) = claimers.join_next().await {
        match outcome.unwrap() {
            ClaimOutcome::Acquired(acquired) => won.push((acquired.kind, acquired.attempt)),
            other => assert!(matches!(other, ClaimOutcome::InFlight(_)), "{other:?}"),
        }
    }
    assert_eq!(won, [(ClaimKind::Recovered, 1)]);
    redis::cmd("DEL").arg(name).exec_async(&mut admin).await.unwrap();
}

/// What other languages write: upper case, leading zeros, and no attempt are decided by the same rules.
#[tokio::test]
async fn a_record_that_another_language_wrote_is_read() {
    let namespace = unique();
    let store = store(&url()).namespace(&namespace).build().unwrap();
    let request = claim(secs(30));
    let mut admin = connect(&url()).await;
    let put = |until: &str, name: &str| {
        let mut put = redis::cmd("HSET");
        put.arg(format!("{namespace}:{}", key(name))).arg("state").arg("CLAIMED").arg("extra").arg("stays");
        put.arg("claim_token").arg("0".repeat(32)).arg("lease_until").arg(until);
        put.arg("fingerprint").arg(request.fingerprint.to_hex()).arg("fingerprint_version").arg("01");
        put
    };
    put("99999999999999", "live").exec_async(&mut admin).await.unwrap();
    put("0001", "lapsed").exec_async(&mut admin).await.unwrap();
    // Longer than what a script counts with exactly.
    put("9999999999999999999", "beyond").exec_async(&mut admin).await.unwrap();
    let live = store.claim(&key("live"), &request).await.unwrap();
    assert!(
        matches!(live, ClaimOutcome::InFlight(held) if held.attempt == 1 && held.fingerprint == request.fingerprint)
    );
    let taken = acquired(store.claim(&key("lapsed"), &request).await.unwrap());
    assert_eq!((taken.kind, taken.attempt), (ClaimKind::Reclaimed, 2));
    let beyond = store.claim(&key("beyond"), &request).await.unwrap();
    assert!(matches!(beyond, ClaimOutcome::InFlight(_)), "{beyond:?}");
    let extra: String = redis::cmd("HGET")
        .arg(format!("{namespace}:{}", key("lapsed")))
        .arg("extra")
        .query_async(&mut admin)
        .await
        .unwrap();
    assert_eq!(extra, "stays");
    crate::support::clean_up(admin, &namespace).await.unwrap();
}
