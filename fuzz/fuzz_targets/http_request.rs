//! The request side of the HTTP layer: any request, asked twice.

#![no_main]

use libfuzzer_sys::{
    arbitrary::{Result, Unstructured},
    fuzz_target,
};

#[path = "../../idemkit-http/tests/http/asked.rs"]
mod asked;

use asked::Asked;

fn asked(bytes: &[u8]) -> Result<Asked> {
    let mut bytes = Unstructured::new(bytes);
    let method = match bytes.int_in_range(0..=7)? {
        0..=4 => b"POST".to_vec(),
        5 | 6 => b"PATCH".to_vec(),
        _ => bytes.arbitrary()?,
    };
    let uri = if bytes.ratio(3, 4)? {
        let mut uri = b"/".to_vec();
        uri.extend(bytes.arbitrary::<Vec<u8>>()?);
        uri
    } else {
        bytes.arbitrary()?
    };
    Ok(Asked {
        method,
        uri,
        keys: if bytes.ratio(7, 8)? { vec![bytes.arbitrary()?] } else { bytes.arbitrary()? },
        content_type: if bytes.ratio(1, 2)? { Some(b"application/json".to_vec()) } else { bytes.arbitrary()? },
        status: if bytes.ratio(3, 4)? { bytes.int_in_range(200..=209)? } else { bytes.arbitrary()? },
        body: bytes.arbitrary()?,
    })
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(asked) = asked(bytes) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(asked.check());
    }
});
