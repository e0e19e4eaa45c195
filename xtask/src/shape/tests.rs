use super::*;

fn read(text: &str, module: &[&str]) -> Items {
    let module: items::Module = module.iter().map(ToString::to_string).collect();
    Items::read(text, &module).unwrap()
}

/// The circles among files, given as module and text.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Vec<(items::Module, Items)> = files
        .iter()
        .map(|(module, text)| {
            let module: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
            (module.iter().map(ToString::to_string).collect(), read(text, &module))
        })
        .collect();
    let found = circles::find(files.iter().map(|(module, items)| (module, items)));
    found.into_iter().map(|circle| circle.modules).collect()
}

#[test]
fn a_function_is_as_long_as_its_lines_and_braces_in_strings_do_not_count() {
    let items = read("fn f(\n    a: u8,\n) {\n    let s = \"}\"; // }\n}\nfn g();\n", &[]);
    let found: Vec<_> = items.functions.iter().map(|it| (&*it.name, it.line, it.lines)).collect();
    assert_eq!(found, [("f", 1, 5)]);
}

#[test]
fn a_bare_bool_is_found_and_others_are_not() {
    let items =
        read("impl X { fn f(&self, a: u8, mut b: bool, c: Option<bool>) -> bool { b } }", &[]);
    assert_eq!(items.functions[0].bools, ["b"]);
}

#[test]
fn types_are_found_and_associated_types_are_not() {
    let text = "pub(crate) struct A<T>(T);\nenum B {}\ntrait C { type D; fn f(&self) -> u8; }\n\
        impl C for A<u8> { type D = u8; }\ntype E = Box<dyn C>;\nstruct $name;\n\
        fn g() -> impl C { A(1) }\nmod m { type F = u8; }\n\
        #[cfg(test)]\nmod tests { struct H; }\n";
    let found: Vec<_> = read(text, &[]).types.into_iter().map(|it| (it.name, it.line)).collect();
    let expected = [("A", 1), ("B", 2), ("C", 3), ("E", 5), ("F", 8)];
    assert_eq!(found, expected.map(|(name, line)| (name.to_owned(), line)));
}

#[test]
fn a_tuple_is_found_in_the_type_of_a_parameter_alone() {
    let lines = |text: &str| -> Vec<usize> {
        read(text, &[]).tuples.into_iter().map(|it| it.line).collect()
    };
    for (text, found) in [
        ("fn f((a, b): (u8, u8), c: u8) {}", 1),
        ("fn f(a: &[(u8, u8)], b: Option<(u8, u8)>) -> (u8, u8) { a }", 2),
        ("trait T { fn f(&self, a: (u8, u8)); }", 1),
        ("fn f<F: Fn(u8, u8)>(a: impl Iterator<Item = (u8, u8)>) {}", 1),
        ("fn f(a: HashMap<u8, u8>, b: impl Fn(u8, u8) -> (u8), c: fn((u8, u8))) {}", 0),
        ("fn f(Point(a, b): Point, c: (), d: &(dyn A + Send), e: a::B) {}", 0),
    ] {
        assert_eq!(lines(text).len(), found, "{text}");
    }
    assert_eq!(lines("fn f(\n    a: u8,\n    b: (u8, u8),\n) {}"), [3]);
}

#[test]
fn two_modules_that_use_each_other_are_a_circle() {
    let forth = ("a", "use crate::b::B;");
    assert_eq!(circles_of(&[forth, ("b", "fn f() { super::a::g(); }")]), [["a", "b"]]);
    assert!(circles_of(&[forth, ("b", "struct B;")]).is_empty());
}

#[test]
fn a_circle_may_be_long_and_run_through_what_the_root_hands_on() {
    let root = ("", "mod a; mod b; mod c; pub use c::C;");
    let files = [
        root,
        ("a", "use crate::{b::{self, B}};"),
        ("b", "use crate::C;"),
        ("c", "use super::a::A;"),
    ];
    assert_eq!(circles_of(&files), [["a", "b", "c"]]);
}

#[test]
fn a_child_and_its_parent_are_no_circle_but_two_children_are() {
    let parent = ("p", "mod x; mod y; use x::X;");
    let files = [parent, ("p::x", "use super::{P, y::Y};"), ("p::y", "use crate::p::x::X;")];
    assert_eq!(circles_of(&files), [["p::x", "p::y"]]);
    assert!(circles_of(&files[..2]).is_empty());
}

#[test]
fn tests_make_no_circle() {
    let inside =
        ("b", "#[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)]\nuse crate::a::A;");
    assert!(circles_of(&[("a", "use crate::b::B;"), inside]).is_empty());
    let root = ("", "#[cfg(test)]\nmod b;");
    assert!(circles_of(&[root, ("a", "use crate::b::B;"), ("b", "use crate::a::A;")]).is_empty());
}

#[test]
fn the_list_of_known_findings_only_shrinks() {
    let finding = |key: &str| Finding { key: key.into(), text: format!("{key}!") };
    assert!(against(&["a"], [finding("a")].into_iter()).is_empty());
    assert_eq!(against(&["a"], [finding("a"), finding("b")].into_iter()), ["b!"]);
    let gone = against(&["a"], std::iter::empty());
    assert!(gone.len() == 1 && gone[0].ends_with(": a"), "{gone:?}");
}
