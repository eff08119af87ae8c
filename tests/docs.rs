//! Pages that name tests name tests that exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_test_that_the_page_on_faults_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    for folder in [
        "src",
        "tests",
        "idemkit-core",
        "e2e",
        "idemkit-dynamodb",
        "idemkit-http",
        "idemkit-mongo",
        "idemkit-postgres",
        "idemkit-redis",
        "conformance",
    ] {
        sources(&root.join(folder), &mut files);
    }
    let code: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let page = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let is_name = |name: &&str| {
        name.len() > 12 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_name).collect();
    assert!(named.len() > 30, "only {} tests are named", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
}
