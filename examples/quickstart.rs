//! The whole story on one screen: `cargo run --example quickstart`. No network, no set-up.
//!
//! It checks what it tells: where the story does not come out as told, it ends with an error.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use idemkit::{Begin, Completion, EffectiveKey, Engine, Fingerprint, MemoryStore, Policy, RunError, StoredResult};

type Told = Result<(), Box<dyn Error>>;

/// Any serde type can be a result.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Receipt {
    charge: String,
}

/// The side effect that must not happen twice. It counts how often it did.
#[derive(Default)]
struct Bank {
    charges: AtomicU32,
}

impl Bank {
    async fn charge(&self) -> Result<Receipt, std::io::Error> {
        // A bank takes its time: long enough for duplicates to arrive meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let number = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Receipt { charge: format!("ch_{number}") })
    }
}

#[tokio::main]
async fn main() -> Told {
    // Any store will do; this one lives in this process.
    let engine = Engine::new(MemoryStore::new());
    let bank = Arc::new(Bank::default());

    once(&engine, &bank).await?;
    at_the_same_instant(&engine, &bank).await?;
    // A lease of 30 s is the default: a short one shows a crash sooner.
    let policy = Policy::builder().lease(Duration::from_millis(300)).build()?;
    after_a_crash(&Engine::builder(MemoryStore::new()).policy(policy).build()).await?;
    println!("\nEvery operation ran once, and every duplicate got its recorded result.");
    Ok(())
}

/// The first call runs, its duplicate replays, and the same key for another request is refused.
async fn once(engine: &Engine, bank: &Bank) -> Told {
    // What the operation is known by: the broker's message id, say. It is hashed at once and goes no further.
    let key = EffectiveKey::message("msg-7", "payments", "billing");
    // What it was asked to do: tells "the same again" from "the same key for something else".
    let request = Fingerprint::of_payload(r#"{"amount":"5.00","currency":"EUR"}"#);

    let first = engine.operation(key, request).json().run(async |_| bank.charge().await).await?;
    println!("first call       ran:      {:?}", first.value);

    let again = engine.operation(key, request).json().run(async |_| bank.charge().await).await?;
    println!("its duplicate    replayed: {:?}", again.value);
    check(again.is_replayed() && again.value == first.value, "the duplicate gets the recorded result")?;

    let other = Fingerprint::of_payload(r#"{"amount":"6.00","currency":"EUR"}"#);
    let refused = engine.operation(key, other).json().run(async |_| bank.charge().await).await;
    check(matches!(refused, Err(RunError::Mismatch)), "another payload under the key is refused")?;
    println!("another payload  refused:  {}", RunError::<std::io::Error>::Mismatch);
    check(bank.charges.load(Ordering::SeqCst) == 1, "the bank charged once")
}

/// Fifty duplicates at the same instant: one runs, the others wait for it.
async fn at_the_same_instant(engine: &Engine, bank: &Arc<Bank>) -> Told {
    let key = EffectiveKey::message("msg-8", "payments", "billing");
    let request = Fingerprint::of_payload(r#"{"amount":"8.00","currency":"EUR"}"#);
    let before = bank.charges.load(Ordering::SeqCst);
    let start = Arc::new(tokio::sync::Barrier::new(50));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (engine, bank, start) = (engine.clone(), Arc::clone(bank), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            engine.operation(key, request).json().run(async |_| bank.charge().await).await
        });
    }
    let (mut ran, mut replayed) = (0, 0);
    while let Some(run) = tasks.join_next().await {
        if run??.is_replayed() { replayed += 1 } else { ran += 1 }
    }
    println!("\n50 at one instant: {ran} ran, {replayed} replayed");
    check((ran, replayed) == (1, 49), "of fifty duplicates one runs")?;
    check(bank.charges.load(Ordering::SeqCst) == before + 1, "the bank charged once")
}

/// An executor dies half-way. Its claim lapses, the next attempt takes over, and the zombie's late result is fenced.
async fn after_a_crash(engine: &Engine) -> Told {
    let key = EffectiveKey::message("msg-9", "payments", "billing");
    let request = Fingerprint::of_payload(r#"{"amount":"9.00","currency":"EUR"}"#);

    // `begin` is what `run` is made of: it gives a guard that holds the claim. On a runtime of its own, so that it can
    // stand still as a whole, heartbeat included, as a paused machine does.
    let paused = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let Begin::Proceed(zombie) = std::thread::scope(|scope| {
        scope
            .spawn(|| paused.block_on(engine.begin(key, request)))
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }) else {
        return check(false, "the key is vacant");
    };
    println!("\nattempt {} claimed the key, and its machine stands still", zombie.context().attempt());

    // A duplicate waits for it, and takes over when its lease has lapsed.
    let next = engine.run(key, request, async |context| {
        println!(
            "attempt {} took over after the lease; may the effect have happened already? {}",
            context.attempt(),
            context.is_retry()
        );
        println!(
            "  it asks the bank by the key that every attempt gives it: {:.16}…",
            context.downstream_key().to_string()
        );
        Ok::<_, std::io::Error>(StoredResult::new(200, "charged by attempt 2"))
    });
    let next = next.await?;

    // The zombie wakes up and wants to record its own result.
    let late = zombie.complete(StoredResult::new(200, "charged by attempt 1")).await;
    check(matches!(late, Completion::Fenced), "the zombie is fenced")?;
    println!("attempt 1 came back and was fenced: {late:?}");

    let duplicate =
        engine.run(key, request, async |_| Ok::<_, std::io::Error>(StoredResult::new(500, "ran again"))).await?;
    println!("a duplicate gets:  {:?}", String::from_utf8_lossy(&duplicate.value.body));
    tokio::task::spawn_blocking(move || drop(paused)).await?;
    check(duplicate.value == next.value, "what is recorded is attempt 2's")
}

fn check(holds: bool, what: &str) -> Told {
    if holds { Ok(()) } else { Err(format!("the story went wrong: it is not true that {what}").into()) }
}
