//! Webhook deliveries with repeats, each handled once: `cargo run --example webhooks -- FILE` (or standard input).
//!
//! FILE has a delivery a line: `{"id":"evt_1","type":"…","attempt":1,"data":{"amount_minor":500,…}}`. The effect
//! happens once for each `id`; a repeat gets the recorded result; an id that comes again with another payload is
//! refused. `attempt` numbers the delivery and is not part of the payload, and neither are white space and the order of
//! names. 32 deliveries are handled at a time.
//!
//! An effect fails where `data.amount_minor` is negative, as a handler of one's own may fail: a failure releases the
//! key, so that a repeat tries again.
//!
//! Ends with 0; with 1 where a line is not a delivery (named by its number, and the rest is handled) or the input
//! cannot be read; with 2 on a usage error; with 130 after Ctrl-C, when what runs has ended.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use idemkit::{EffectiveKey, Engine, Fingerprint, MemoryStore, RunError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, value::RawValue};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader},
    task::{JoinError, JoinSet},
};

const USAGE: &str = "usage: webhooks [FILE]\n\nReads webhook deliveries, a JSON object a line, from FILE (or - or nothing: standard input).";
const AT_A_TIME: usize = 32;
const LINE_BYTES_MAX: usize = 1024 * 1024;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let file = match arguments.as_slice() {
        [] => None,
        [one] if one == "-" => None,
        [one] if one == "--help" || one == "-h" => {
            say(USAGE);
            return ExitCode::SUCCESS;
        }
        [one] if !one.to_string_lossy().starts_with('-') => Some(one.clone()),
        _ => {
            complain(USAGE);
            return ExitCode::from(2);
        }
    };
    // One thread begins deliveries in the order of their lines: of two payloads under one id, the first line's is
    // always the one that counts.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no runtime: {error}")),
    };
    let code = runtime.block_on(async {
        let Some(file) = file else {
            return handle_all(tokio::io::stdin(), ProgressBar::new_spinner()).await;
        };
        match tokio::fs::File::open(&file).await {
            Ok(open) => {
                let bytes = open.metadata().await.map_or(0, |metadata| metadata.len());
                handle_all(open, ProgressBar::new(bytes)).await
            }
            Err(error) => fail(&format!("{}: {error}", file.display())),
        }
    });
    // A read of standard input cannot be called off, and must not keep the program from ending.
    runtime.shutdown_background();
    code
}

/// A delivery as it is handled.
struct Delivery {
    line: usize,
    id: String,
    payload: Fingerprint,
    amount_minor: i64,
}

/// How a delivery ended.
enum Ended {
    Executed,
    Replayed,
    Mismatched,
    Failed(String),
}

#[derive(Default)]
struct Summary {
    executed: usize,
    replayed: usize,
    mismatched: usize,
    failed: usize,
    invalid: usize,
}

/// What a delivery is answered with, and a repeat too.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Receipt {
    entry: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("a negative amount cannot be entered")]
struct NegativeAmount;

/// The effect that must not happen twice for one id. It keeps count, to be checked at the end.
#[derive(Default)]
struct Ledger {
    entries_by_id: Mutex<HashMap<String, usize>>,
}

impl Ledger {
    async fn enter(&self, id: &str, amount_minor: i64) -> Result<Receipt, NegativeAmount> {
        tokio::time::sleep(Duration::from_millis(3)).await;
        if amount_minor < 0 {
            return Err(NegativeAmount);
        }
        let mut entries = self.entries_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        *entries.entry(id.to_owned()).or_default() += 1;
        Ok(Receipt { entry: entries.len() })
    }

    fn entered_twice(&self) -> usize {
        let entries = self.entries_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values().filter(|entries| **entries > 1).count()
    }
}

async fn handle_all(input: impl tokio::io::AsyncRead + Unpin, bar: ProgressBar) -> ExitCode {
    let engine = Engine::builder(MemoryStore::new()).surface("webhooks").build();
    let ledger = Arc::new(Ledger::default());
    // Drawn on standard error, and only where that is a terminal.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg} {elapsed}") {
        bar.set_style(style);
    }
    let mut progress = Progress { bar, summary: Summary::default(), began: Instant::now() };
    let mut lines = Lines { input: BufReader::new(input), number: 0, bytes: 0 };
    let mut running = JoinSet::new();
    let mut code = ExitCode::SUCCESS;
    let mut interrupt = std::pin::pin!(async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without signals there is nothing to hear.
            std::future::pending::<()>().await;
        }
    });
    loop {
        // No more are begun than may run, and none is read that cannot be begun.
        while running.len() >= AT_A_TIME {
            let ended = running.join_next().await;
            progress.ended(ended);
        }
        let line = tokio::select! {
            line = lines.next() => line,
            () = &mut interrupt => {
                code = ExitCode::from(130);
                break;
            }
        };
        progress.bar.set_position(lines.bytes);
        match line {
            Ok(None) => break,
            Ok(Some(line)) => match line.and_then(|text| parse(lines.number, &text)) {
                Ok(Some(delivery)) => {
                    let (engine, ledger) = (engine.clone(), Arc::clone(&ledger));
                    running.spawn(async move { (delivery.line, handle(&engine, &ledger, &delivery).await) });
                }
                // An empty line.
                Ok(None) => {}
                Err(wrong) => progress.invalid(lines.number, &wrong),
            },
            Err(error) => {
                progress.tell(&format!("cannot read on after line {}: {error}", lines.number));
                code = ExitCode::FAILURE;
                break;
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        progress.ended(Some(ended));
    }
    let summary = progress.finish();
    if ledger.entered_twice() > 0 {
        return fail(&format!("{} ids had their effect twice", ledger.entered_twice()));
    }
    if summary.invalid > 0 && code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
}

/// Handles one delivery: all that an application writes.
async fn handle(engine: &Engine, ledger: &Ledger, delivery: &Delivery) -> Ended {
    let key = EffectiveKey::message(&delivery.id, "webhooks", "ledger");
    let operation = engine.operation(key, delivery.payload).json();
    match operation.run(async |_| ledger.enter(&delivery.id, delivery.amount_minor).await).await {
        Ok(run) if run.is_replayed() => Ended::Replayed,
        Ok(_) => Ended::Executed,
        Err(RunError::Mismatch) => Ended::Mismatched,
        Err(error) => Ended::Failed(error.to_string()),
    }
}

/// Reads a delivery; nothing, where the line is empty.
fn parse(line: usize, text: &[u8]) -> Result<Option<Delivery>, String> {
    let text = if line == 1 { text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) } else { text };
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    // Its own line number is always 1.
    let not_json = |error: serde_json::Error| format!("not JSON: {}", error.to_string().replace(" at line 1", ""));
    let whole: &RawValue = serde_json::from_slice(text).map_err(not_json)?;
    if !whole.get().starts_with('{') {
        return Err("not a JSON object".to_owned());
    }
    // Members stay as they were written: numbers that are read and written again may come out as others.
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_slice(text).map_err(not_json)?;
    let id = members.get("id").and_then(|id| serde_json::from_str::<String>(id.get()).ok());
    let id = id.filter(|id| !id.is_empty()).ok_or("no \"id\" (a text that is not empty)")?;
    let data = members.get("data").and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
    let amount_minor = data.and_then(|data| data.get("amount_minor")?.as_i64()).unwrap_or(0);
    // Another delivery of the same event is the same request.
    members.remove("attempt");
    let payload = Fingerprint::of_json(serde_json::to_string(&members).map_err(not_json)?);
    Ok(Some(Delivery { line, id, payload, amount_minor }))
}

/// Lines of at most [`LINE_BYTES_MAX`] bytes; of a longer one no more than that is ever held.
struct Lines<R> {
    input: R,
    number: usize,
    bytes: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// The next line without its end, or what is wrong with it; nothing at the end of the input.
    async fn next(&mut self) -> std::io::Result<Option<Result<Vec<u8>, String>>> {
        let mut line = Vec::new();
        if !self.read_part(&mut line).await? {
            return Ok(None);
        }
        self.number += 1;
        if line.ends_with(b"\n") || line.len() <= LINE_BYTES_MAX {
            return Ok(Some(Ok(line)));
        }
        while !line.ends_with(b"\n") {
            line.clear();
            if !self.read_part(&mut line).await? {
                break;
            }
        }
        Ok(Some(Err(format!("longer than {LINE_BYTES_MAX} bytes"))))
    }

    /// Reads up to a line's end, or as much as a line may have. Says whether there was anything.
    async fn read_part(&mut self, line: &mut Vec<u8>) -> std::io::Result<bool> {
        let read = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', line).await?;
        self.bytes += read as u64;
        Ok(read > 0)
    }
}

struct Progress {
    bar: ProgressBar,
    summary: Summary,
    began: Instant,
}

impl Progress {
    fn ended(&mut self, ended: Option<Result<(usize, Ended), JoinError>>) {
        let Some(ended) = ended else { return };
        match ended {
            Ok((_, Ended::Executed)) => self.summary.executed += 1,
            Ok((_, Ended::Replayed)) => self.summary.replayed += 1,
            Ok((line, Ended::Mismatched)) => {
                self.summary.mismatched += 1;
                self.tell(&format!("line {line}: this id was used with another payload"));
            }
            Ok((line, Ended::Failed(error))) => {
                self.summary.failed += 1;
                self.tell(&format!("line {line}: {error}"));
            }
            Err(error) => {
                self.summary.failed += 1;
                self.tell(&format!("a handler ended badly: {error}"));
            }
        }
        self.bar.set_message(format!("{} handled", self.handled()));
    }

    fn invalid(&mut self, line: usize, wrong: &str) {
        self.summary.invalid += 1;
        self.tell(&format!("line {line}: {wrong}"));
    }

    fn tell(&self, text: &str) {
        self.bar.suspend(|| complain(text));
    }

    fn handled(&self) -> usize {
        let Summary { executed, replayed, mismatched, failed, .. } = self.summary;
        executed + replayed + mismatched + failed
    }

    fn finish(self) -> Summary {
        self.bar.finish_and_clear();
        let (handled, seconds) = (self.handled(), self.began.elapsed().as_secs_f64());
        let Summary { executed, replayed, mismatched, failed, invalid } = self.summary;
        say(&format!(
            "{handled} deliveries in {seconds:.2} s ({:.0} a second)\n  executed   {executed:>6}\n  replayed   {replayed:>6}\n  mismatched {mismatched:>6}\n  failed     {failed:>6}",
            handled as f64 / seconds.max(f64::EPSILON),
        ));
        if invalid > 0 {
            say(&format!("  not valid  {invalid:>6}"));
        }
        self.summary
    }
}

/// Prints a text. Whoever closes standard output does not want to read it.
fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// The same for standard error.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn fail(text: &str) -> ExitCode {
    complain(text);
    ExitCode::FAILURE
}
