use std::{
    env,
    io::Write,
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use rstest::rstest;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/webhooks.jsonl");

/// The program that cargo built along with this test.
fn program(name: &str) -> Command {
    let test = env::current_exe().expect("a test knows where it is");
    let target = test.parent().and_then(|deps| deps.parent()).expect("cargo runs tests from target/<profile>/deps");
    let program = target.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    assert!(program.exists(), "{} is not built: cargo test builds it unless told to build less", program.display());
    Command::new(program)
}

/// A file of its own, gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(content: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let path = env::temp_dir().join(format!("idemkit-examples-{}-{number}.jsonl", std::process::id()));
        std::fs::write(&path, content).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn webhooks(content: &[u8]) -> Output {
    let file = Scratch::new(content);
    program("webhooks").arg(&file.0).output().expect("the program starts")
}

fn count(output: &Output, of: &str) -> u32 {
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().find(|line| line.trim_start().starts_with(of)).unwrap_or_else(|| panic!("no {of} in {text}"));
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count in {line}"))
}

fn counts(output: &Output) -> [u32; 4] {
    ["executed", "replayed", "mismatched", "failed"].map(|of| count(output, of))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_quickstart_tells_its_story() {
    let output = program("quickstart").output().expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["replayed", "refused", "1 ran, 49 replayed", "attempt 2 took over", "fenced"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.lines().count() <= 24, "more than a screen");
}

#[test]
fn the_sample_has_each_effect_once() {
    let output = program("webhooks").arg(SAMPLE).output().expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts(&output), [1_400, 575, 25, 0]);
}

const FIRST: &str = r#"{"id":"evt_1","type":"paid","attempt":1,"data":{"amount_minor":5,"currency":"EUR"}}"#;
const AGAIN: &str =
    r#"{ "data" : {"currency":"EUR", "amount_minor":5}, "attempt" : 2, "type" : "paid", "id" : "evt_1" }"#;
const OTHER: &str = r#"{"id":"evt_1","type":"paid","attempt":3,"data":{"amount_minor":6,"currency":"EUR"}}"#;
const FAILS: &str = r#"{"id":"evt_2","type":"paid","attempt":1,"data":{"amount_minor":-1}}"#;

#[rstest]
#[case::nothing("", [0, 0, 0, 0])]
#[case::white_space("\n  \r\n\t\n", [0, 0, 0, 0])]
#[case::a_repeat_written_otherwise(&format!("{FIRST}\n{AGAIN}\n"), [1, 1, 0, 0])]
#[case::crlf_and_no_last_line_end(&format!("{FIRST}\r\n\r\n{AGAIN}"), [1, 1, 0, 0])]
#[case::byte_order_mark(&format!("\u{feff}{FIRST}\n"), [1, 0, 0, 0])]
#[case::another_payload(&format!("{FIRST}\n{OTHER}\n{AGAIN}\n"), [1, 1, 1, 0])]
#[case::large_numbers_that_differ_in_their_last_digit(
    "{\"id\":\"e\",\"data\":18446744073709551616}\n{\"id\":\"e\",\"data\":18446744073709551617}",
    [1, 0, 1, 0]
)]
#[case::a_failure_is_tried_again(&format!("{FAILS}\n{FAILS}\n"), [0, 0, 0, 2])]
fn valid_input_ends_with_success(#[case] content: &str, #[case] expected: [u32; 4]) {
    let output = webhooks(content.as_bytes());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts(&output), expected);
}

#[rstest]
#[case::not_json(b"nonsense".to_vec())]
#[case::cut_off(b"{\"id\":\"evt_3\"".to_vec())]
#[case::not_an_object(b"[1,2]".to_vec())]
#[case::no_id(b"{\"type\":\"paid\"}".to_vec())]
#[case::an_id_that_is_no_text(b"{\"id\":7}".to_vec())]
#[case::an_empty_id(b"{\"id\":\"\"}".to_vec())]
#[case::not_utf8(b"{\"id\":\"\xff\xfe\"}".to_vec())]
#[case::nested_without_end(vec![b'['; 100_000])]
#[case::too_long([&b"{\"id\":\""[..], &vec![b'x'; 3 * 1024 * 1024], b"\"}"].concat())]
fn a_line_that_is_not_valid_is_named_by_its_number_and_the_rest_is_handled(#[case] line: Vec<u8>) {
    let content = [FIRST.as_bytes(), b"\n", AGAIN.as_bytes(), b"\n", &line, b"\n", FAILS.as_bytes(), b"\n"].concat();
    let output = webhooks(&content);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("line 3: "), "{}", stderr(&output));
    assert_eq!(counts(&output), [1, 1, 0, 1]);
    assert_eq!(count(&output, "not valid"), 1);
}

#[test]
fn standard_input_is_read_where_no_file_is_named() {
    for arguments in [&[][..], &["-"]] {
        let mut child = program("webhooks")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(format!("{FIRST}\n{AGAIN}\n").as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(counts(&output), [1, 1, 0, 0]);
    }
}

#[rstest]
#[case::help(&["--help"], 0)]
#[case::unknown_option(&["--fast"], 2)]
#[case::two_files(&["a", "b"], 2)]
#[case::no_such_file(&["/nowhere/at/all.jsonl"], 1)]
#[case::a_directory(&["/"], 1)]
fn options_and_files(#[case] arguments: &[&str], #[case] code: i32) {
    let output = program("webhooks").args(arguments).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let told = if code == 0 { output.stdout.len() } else { output.stderr.len() };
    assert!(told > 0, "it says nothing");
}

#[test]
fn nobody_reading_its_output_is_no_panic() {
    let mut child =
        program("webhooks").arg(SAMPLE).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    drop(child.stderr.take());
    let code = child.wait().expect("it ends").code();
    assert_eq!(code, Some(0), "101 would be a panic");
}
