//! Sees the date of every response of the service itself, by an interceptor of the SDK.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        http::HttpResponse,
        interceptors::{BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef},
    },
    error::BoxError,
};
use aws_smithy_types::{
    DateTime,
    config_bag::{Storable, StoreReplace},
    date_time::Format,
};

use super::StoreClock;

/// When the attempt under way was sent.
#[derive(Debug)]
struct Sent(Instant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

#[derive(Debug)]
pub(super) struct Dates {
    clock: StoreClock,
}

impl Dates {
    pub(super) fn new(clock: StoreClock) -> Self {
        Self { clock }
    }
}

impl Intercept for Dates {
    fn name(&self) -> &'static str {
        "idemkit: dates of responses"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // For each attempt anew: a retry of the SDK is a request of its own.
        config.interceptor_state().store_put(Sent(Instant::now()));
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = Instant::now();
        if !is_dynamodbs(context.response()) {
            return Ok(());
        }
        // A response without a date that can be read tells nothing, and is no error.
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, Format::HttpDate).ok());
        let date = date.and_then(|date| u64::try_from(date.secs()).ok()).map(Duration::from_secs);
        if let (Some(Sent(sent)), Some(date)) = (config.load::<Sent>(), date) {
            self.clock.observe(*sent, received, date);
        }
        Ok(())
    }
}

/// Whether a response is from the service itself. A proxy on the way has a clock of its own, and dates its errors by it.
fn is_dynamodbs(response: &HttpResponse) -> bool {
    // Emulators may have none of these; but nobody else answers with success.
    response.status().is_success()
        || ["x-amzn-requestid", "x-amz-crc32"].iter().any(|name| response.headers().contains_key(name))
}
