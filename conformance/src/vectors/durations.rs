//! The edges of durations. Zero cannot be asked for: [`Ttl`] has no such value.

use std::time::Duration;

use idemkit_core::{ClaimOutcome, StoreErrorKind, Ttl, WaitOutcome};
use tokio::time::Instant;

use super::lease::{check_left, granted};
use crate::{
    case::{Case, Checked, INSTANT, LONG, SHORT, Stop, check, claim, complete, renew, result},
    mirror::Mirror,
    model::Reply,
};

pub(super) async fn lease_of_a_millisecond(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    // No call lasts longer than the lease that it concerns, so it may well fail; but it may not hang, or leave a lease
    // that does not end.
    for _ in 0..10 {
        let reply = case.a.send(&key.key, &claim(case.token(), INSTANT)).await;
        check(matches!(reply, Reply::Claim(_) | Reply::Error(StoreErrorKind::Unavailable)), || {
            format!("a claim with a lease of a millisecond was told {reply:?}")
        })?;
    }
    key.pass().await;
    let reply = case.b.send(&key.key, &claim(key.holder, LONG)).await;
    check(matches!(reply, Reply::Claim(ClaimOutcome::Acquired(_))), || {
        format!("after leases of a millisecond a claim was told {reply:?}")
    })
}

pub(super) async fn lease_of_ten_years(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let (token, lease) = (key.holder, Ttl::MAX.as_duration());
    let (lease_left, asked) = granted(&case.a, &mut key, claim(token, lease)).await?;
    check_left(case, lease_left, lease, asked, asked, Duration::ZERO)?;
    key.step(&case.b, claim(case.token(), LONG)).await?;

    // What it is prolonged by is as long.
    let mut renewed = Mirror::new(case, case.key("renewed"));
    renewed.step(&case.a, claim(renewed.holder, LONG)).await?;
    let renewal = renew(renewed.holder, lease);
    let (lease_left, asked) = granted(&case.a, &mut renewed, renewal).await?;
    check_left(case, lease_left, lease, asked, asked, Duration::ZERO)?;
    key.pass().await;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    key.step(&case.a, complete(token, result("done"), LONG)).await?;
    Ok(())
}

pub(super) async fn expiry_of_a_millisecond(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    key.step(&case.a, complete(token, result("done"), INSTANT)).await?;
    key.pass().await;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn expiry_of_ten_years(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    key.step(&case.a, complete(token, result("done"), Ttl::MAX.as_duration())).await?;
    key.pass().await;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn wait_of_a_millisecond(case: &Case) -> Checked {
    let key = case.key("key");
    case.a.send(&key, &claim(case.token(), LONG)).await;
    for _ in 0..10 {
        let began = Instant::now();
        let waited = case.b.store.wait(&key, Ttl::MIN).await;
        let took = began.elapsed();
        check(took <= SHORT * 4, || format!("a wait of a millisecond took {took:?}"))?;
        match waited {
            Ok(WaitOutcome::TimedOut { .. }) => {}
            // Nothing was read in so short a time.
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {}
            other => {
                return Err(Stop::Failed(format!("a wait of a millisecond for a live claim ended with {other:?}")));
            }
        }
    }
    check(matches!(case.b.wait(&key, Duration::from_millis(500)).await?, WaitOutcome::TimedOut { .. }), || {
        "a wait after waits of a millisecond did not time out".to_owned()
    })
}
