//! A server that speaks TLS, with a certificate of an authority of the test's own.

use idemkit_core::{ClaimOutcome, Store, StoreErrorKind};
use idemkit_redis::RedisStore;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use redis::{Client, TlsCertificates};

use crate::support::{acquired, claim, completion, key, own_with_port, patient, secs, unique};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_behind_tls_is_used_where_its_certificate_is_trusted_and_refused_elsewhere() {
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (authority_key, server_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let authority_cert = authority.self_signed(&authority_key).unwrap();
    let server_cert = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server_cert = server_cert.signed_by(&server_key, &Issuer::new(authority, authority_key)).unwrap();

    let folder = std::env::temp_dir().join(unique());
    std::fs::create_dir(&folder).unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let (cert, private, ca) = (
        write("server.pem", server_cert.pem()),
        write("key.pem", server_key.serialize_pem()),
        write("ca.pem", authority_cert.pem()),
    );
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &private, "--tls-ca-cert-file", &ca];
    let args = |port: &str| {
        let args = [&["--tls-port", port, "--tls-auth-clients", "no"][..], &files].concat();
        args.into_iter().map(str::to_owned).collect()
    };
    let (_server, port) = own_with_port(args);
    let url = format!("rediss://localhost:{port}");

    // The builder of any store sets the cryptography up.
    let refused = patient(RedisStore::builder().url(&url)).namespace(unique()).build().unwrap();
    let error = refused.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");

    let certificates = TlsCertificates { client_tls: None, root_cert: Some(authority_cert.pem().into_bytes()) };
    let client = Client::build_with_tls(url, certificates).unwrap();
    let store = patient(RedisStore::builder().client(client)).namespace(unique()).build().unwrap();
    let request = claim(secs(30));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.wait(&key("order"), secs(60)).await }
    });
    store.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    assert!(matches!(waiter.await.unwrap().unwrap(), idemkit_core::WaitOutcome::Completed(_)));
    let replay = store.claim(&key("order"), &claim(secs(30))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
