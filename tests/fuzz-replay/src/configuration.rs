//! Configuration files.

use config::{ReplayKeys, Severity, parse, render};
use control::CompileError;
use dataplane::Generation;

/// Name of the file in mistakes.
const NAME: &str = "fuzz.toml";

/// Takes the input as a configuration file. What is refused is refused with a place inside the
/// file; what is good prints as a configuration that means the same, and compiles.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parsed = match parse(text, NAME) {
        Ok(parsed) => parsed,
        Err(errors) => {
            assert!(errors.errors() > 0, "refused without a reason");
            places_lie_inside(text, &errors.problems);
            return;
        }
    };
    places_lie_inside(text, &parsed.warnings);
    assert!(parsed.warnings.iter().all(|problem| problem.severity == Severity::Warning));

    let effective = parsed.validated.effective();
    match parse(&effective, NAME) {
        Ok(again) => {
            assert_eq!(again.validated, parsed.validated, "{effective}");
            assert_eq!(again.validated.effective(), effective, "printed twice");
        }
        Err(errors) => panic!("{effective}\nis refused:\n{}", render(&errors.problems)),
    }
    match control::compile(&parsed.validated, ReplayKeys::none(&parsed.validated), Generation(1)) {
        Ok(snapshot) => {
            assert_eq!(
                snapshot.ports().count(),
                parsed.validated.ports.len() + 1,
                "and the host's"
            );
            assert_eq!(snapshot.spd().policies().len(), parsed.validated.policies.len());
        }
        // More rules than are held: the only thing that is found out so late.
        Err(CompileError::Spd(_)) => {}
        Err(error) => panic!("{effective}\ndoes not compile: {error}"),
    }
}

/// Every problem points into the file, or at the file as a whole, and can be shown.
fn places_lie_inside(text: &str, problems: &[config::Diagnostic]) {
    let lines = text.split('\n').count();
    for problem in problems {
        assert_eq!(problem.place.file, NAME);
        assert!(problem.place.line as usize <= lines, "{problem}");
    }
    let shown = render(problems);
    assert!(problems.is_empty() || !shown.is_empty());
}
