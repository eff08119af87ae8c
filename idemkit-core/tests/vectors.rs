//! The shared test vectors of keys and fingerprints: other implementations read the same file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use idemkit_core::{EffectiveKey, Fingerprint, HttpRequest};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    fingerprint_v1: Vec<FingerprintCase>,
    http_effective_key: Vec<HttpKeyCase>,
    composed_key: Vec<ComposedKeyCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FingerprintCase {
    method: String,
    path: String,
    query: String,
    body_base64: String,
    content_type: Option<String>,
    fingerprint: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpKeyCase {
    idempotency_key: String,
    scope: String,
    method: String,
    path: String,
    effective_key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComposedKeyCase {
    parts: Vec<String>,
    effective_key: String,
}

fn vectors() -> serde_json::Result<Vectors> {
    serde_json::from_str(include_str!("vectors/keys.json"))
}

/// All cases of a group are run, so that one failure shows every case that a change breaks.
fn check<T>(group: &str, cases: &[T], run: impl Fn(&T) -> (String, String)) {
    assert!(!cases.is_empty(), "{group} has no cases");
    let failures: Vec<_> = cases
        .iter()
        .enumerate()
        .filter_map(|(index, case)| {
            let (made, expected) = run(case);
            (made != expected).then(|| format!("{group}[{index}]: expected {expected}, made {made}"))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn fingerprint_v1() {
    check("fingerprint_v1", &vectors().expect("keys.json").fingerprint_v1, |case| {
        let body = STANDARD.decode(&case.body_base64).expect("base64");
        let mut request = HttpRequest::new(&case.method, &case.path).query(&case.query).body(&body);
        if let Some(content_type) = &case.content_type {
            request = request.content_type(content_type);
        }
        let made = Fingerprint::http(&request);
        assert_eq!(made.version(), Fingerprint::VERSION_PLAIN);
        (made.to_hex(), case.fingerprint.clone())
    });
}

#[test]
fn http_effective_key() {
    check("http_effective_key", &vectors().expect("keys.json").http_effective_key, |case| {
        let made = EffectiveKey::http(&case.idempotency_key, &case.scope, &case.method, &case.path);
        (made.to_string(), case.effective_key.clone())
    });
}

#[test]
fn composed_key() {
    check("composed_key", &vectors().expect("keys.json").composed_key, |case| {
        (EffectiveKey::from_parts(&case.parts).to_string(), case.effective_key.clone())
    });
}
