//! Tests in network namespaces of their own: the test binary runs itself again inside.

use std::io::Write;
use std::process::{Command, Output};

/// Set in the run inside: the name of the second namespace.
const INSIDE: &str = "LOCKGATE_TEST_FAR_NAMESPACE";

/// A namespace, gone with the value.
struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Namespace {
        run("ip", &["netns", "add", &name]);
        let namespace = Namespace(name);
        run("ip", &["-n", &namespace.0, "link", "set", "lo", "up"]);
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

/// Runs `body`, the body of the test of that name, inside a namespace that has a second one for a
/// neighbour; both are removed afterwards. `body` gets the second one's name. Without root, says
/// loudly that the test was skipped.
pub(crate) fn inside(test: &str, body: fn(far: &str)) {
    if let Ok(far) = std::env::var(INSIDE) {
        return body(&far);
    }
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !root {
        return loudly(&format!("SKIPPED: {test}: needs root to make network namespaces"));
    }
    let id = std::process::id();
    let hash: u32 = test.bytes().fold(7, |sum: u32, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    let near = Namespace::new(format!("lgc{id}-{hash:x}n"));
    let far = Namespace::new(format!("lgc{id}-{hash:x}f"));
    let me = std::env::current_exe().expect("this program has a path");
    let output = Command::new("ip")
        .args(["netns", "exec", &near.0])
        .arg(me)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, &far.0)
        .output()
        .expect("ip runs");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed inside its namespace");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 passed"), "{test} did not run inside its namespace");
    // The harness has begun the line already.
    let skipped = text.lines().filter_map(|line| Some(&line[line.find("SKIPPED: ")?..]));
    skipped.for_each(loudly);
}

/// Says something that a test's captured output does not swallow.
fn loudly(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Runs a program that must succeed, and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{program} {}: {stderr}", arguments.join(" "));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// `ip` with these words.
pub(crate) fn ip(words: &str) {
    run("ip", &words.split_whitespace().collect::<Vec<_>>());
}
