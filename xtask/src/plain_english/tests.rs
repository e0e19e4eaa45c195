use super::*;

fn source(path: &str, text: &str) -> Source {
    Source { path: root().join(path), text: text.into() }
}

fn named(name: &str, line: usize) -> Named {
    Named { package: "a".into(), path: root().join("a/src/lib.rs"), line, name: name.into() }
}

#[test]
fn a_file_belongs_to_the_innermost_package() {
    let sources = [
        source("Cargo.toml", "[workspace]\nmembers = []\n"),
        source("a/Cargo.toml", "[package]\nname = \"a\"\n"),
        source("a/b/Cargo.toml", "[package]\nversion = \"1\"\nname = \"b-c\"\n[[bin]]\nname = 1\n"),
    ];
    let folders = folders(&sources);
    assert_eq!(package_of(&folders, &root().join("a/src/lib.rs")), "a");
    assert_eq!(package_of(&folders, &root().join("a/b/src/lib.rs")), "b-c");
    assert_eq!(package_of(&folders, &root().join("x.rs")), "(no crate)");
}

#[test]
fn a_repeated_type_name_counts_from_its_second_place() {
    let other_crate = Named { package: "b".into(), ..named("X", 4) };
    let types = vec![named("X", 1), named("Y", 2), named("X", 3), other_crate];
    assert_eq!(repeated(types), [named("X", 3)]);
}

#[test]
fn a_finding_names_the_figure_its_record_the_advice_and_new_breaches() {
    let risen = RisenFigure {
        package: "a".into(),
        rule: VAGUE,
        recorded: Figure { count: 1, total: 0 },
        now: Figure { count: 2, total: 0 },
    };
    let breach = named_breach(VAGUE, named("Told", 7));
    assert_eq!(
        describe(&risen, &[&breach]),
        "a: type names of one vague word: 2, recorded 1: use a noun of two or three words\n    \
         a/src/lib.rs:7: Told"
    );
}

#[test]
fn added_lines_are_read_from_hunks() {
    let difference = "--- a/x.rs\n+++ b/x.rs\n@@ -1,2 +3,2 @@ fn f()\n+a\n+b\n@@ -9 +10 @@\n+c\n\
        @@ -20,2 +21,0 @@\n--- a/y.rs\n+++ /dev/null\n@@ -1 +0,0 @@\n";
    let added = parse_difference(difference);
    let lines: Vec<usize> = added[&root().join("x.rs")].iter().copied().collect();
    assert_eq!((added.len(), lines), (1, vec![3, 4, 10]));
}

#[test]
fn the_table_shows_recorded_values_that_differ() {
    let record = |count| {
        let mut figures = Figures::default();
        figures[POINTING] = Figure { count, total: 1000 };
        Record { crates: [("a".to_owned(), figures)].into() }
    };
    let text = table(&record(90), &record(104));
    assert!(text.contains("10.4 > 9.0"), "{text}");
    assert_eq!(text.lines().count(), 3, "a head, a crate, the sum");
}
