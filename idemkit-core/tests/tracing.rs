//! What reaches `tracing`: every event under its name, with the hashed key, and never a raw one.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use idemkit_core::{EffectiveKey, Engine, Fingerprint, MemoryStore, Policy, StoredResult};

/// A buffer that a subscriber writes its log to.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::Error::other("poisoned"))?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn events_name_the_hashed_key_and_never_a_raw_one() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let _default = tracing::subscriber::set_default(subscriber.finish());

    let store = MemoryStore::builder().result_bytes_max(10).build();
    let engine =
        Engine::builder(store).surface("webhooks").policy(Policy::builder().no_wait().build().unwrap()).build();
    let key = EffectiveKey::http("raw-key-4711", "tenant-secret", "POST", "/charges");
    let request = Fingerprint::of_payload("card 4111-1111");
    let run = async |fingerprint, body: &'static str| {
        let operation = engine.operation(key, fingerprint).expires_after(Duration::from_secs(60));
        operation.run(async move |_| Ok::<_, io::Error>(StoredResult::new(200, body))).await
    };
    run(request, "body-4711 is too large").await.unwrap();
    run(request, "again").await.unwrap_err();
    run(Fingerprint::of_payload("card 4222-2222"), "other").await.unwrap_err();
    drop(engine.begin(EffectiveKey::from_parts(["raw-key-4712"]), request).await);

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for part in [
        "event=\"new\"",
        "event=\"storage_error\"",
        "event=\"replayed\"",
        "event=\"payload_mismatch\"",
        "surface=\"webhooks\"",
        "left to lapse",
        "store=\"memory\"",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(text.contains(&key.to_string()));
    for secret in ["4711", "4712", "tenant-secret", "4111", "4222"] {
        assert!(!text.contains(secret), "{secret} is in:\n{text}");
    }
}
