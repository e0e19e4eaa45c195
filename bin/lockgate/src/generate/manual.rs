//! Manual pages of all commands: what the parser knows, and the sections that it does not know.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::sections::{Described, Sections, sections};

/// Pages that each page names, with their sections.
const SEE_ALSO: [(&str, &str); 3] = [("lockgate", "1"), ("lockgated", "8"), ("lockgate.toml", "5")];

/// Returns the pages of a command and of all commands below it, each with its file's name.
pub(super) fn pages(mut command: Command) -> Vec<(String, Vec<u8>)> {
    command.build();
    let mut pages = Vec::new();
    add(&mut pages, command);
    pages
}

fn add(pages: &mut Vec<(String, Vec<u8>)>, command: Command) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(pages, sub.clone());
    }
    let mut page = Vec::new();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    write(&mut page, &name, command).expect("memory takes what is written");
    let page = String::from_utf8(page).expect("a page is text");
    // A terminal without UTF-8 would show nothing in its place.
    pages.push((format!("{name}.1"), page.replace('…', "...").into_bytes()));
}

/// Writes a page: its sections in the order of man-pages(7).
fn write(page: &mut Vec<u8>, name: &str, command: Command) -> std::io::Result<()> {
    let paragraphs = Paragraphs::of(&command);
    let sections = sections(name);
    let has_arguments = command.get_arguments().any(|arg| !arg.is_hide_set());
    let has_commands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    let source = concat!("Lockgate ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).source(source).manual("Lockgate");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    if has_arguments {
        man.render_options_section(page)?;
    }
    if has_commands {
        man.render_subcommands_section(page)?;
    }
    let mut roff = Roff::default();
    paragraphs.add_notes(&mut roff);
    add_exit_status(&mut roff, &sections);
    list(&mut roff, "FILES", sections.files);
    add_examples(&mut roff, &sections, &paragraphs);
    roff.control("SH", ["SEE ALSO"]);
    roff.text(references(name));
    roff.to_writer(page)
}

/// The text that `--help` ends with, in paragraphs.
struct Paragraphs {
    examples: Vec<String>,
    others: Vec<String>,
}

impl Paragraphs {
    /// Cuts the text: a paragraph that begins with "Example" has examples. Exit codes are left to
    /// the section about them.
    fn of(command: &Command) -> Paragraphs {
        let help = command.get_after_long_help().or(command.get_after_help());
        let text = help.map(ToString::to_string).unwrap_or_default();
        let paragraphs = text.split("\n\n").filter(|text| !text.trim().is_empty());
        let own = paragraphs.map(str::to_owned).filter(|text| {
            !text.starts_with("Exit codes") && !text.starts_with("With --json an error")
        });
        let (examples, others) = own.partition(|text| text.starts_with("Example"));
        Paragraphs { examples, others }
    }

    fn add_notes(&self, roff: &mut Roff) {
        if !self.others.is_empty() {
            roff.control("SH", ["NOTES"]);
            self.others.iter().for_each(|text| add_verbatim(roff, text));
        }
    }
}

/// Adds lines as they stand, in a paragraph of their own.
fn add_verbatim(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn add_exit_status(roff: &mut Roff, sections: &Sections) {
    list(roff, "EXIT STATUS", sections.exit_status);
    if sections.has_json {
        roff.control("PP", []);
        roff.text([
            roman("With "),
            bold("--json"),
            roman(" an error is one line on standard output, an object with the key "),
            bold("error"),
            roman("; it holds the message and the exit code."),
        ]);
    }
}

/// A section that is a list of terms, each with what it means.
fn list(roff: &mut Roff, heading: &str, terms: &[Described]) {
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*meaning)]);
    }
}

fn add_examples(roff: &mut Roff, sections: &Sections, paragraphs: &Paragraphs) {
    roff.control("SH", ["EXAMPLES"]);
    for (command, what) in sections.examples {
        roff.control("PP", []);
        roff.text([roman(format!("{what}:"))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        roff.text([bold(*command)]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
    for text in &paragraphs.examples {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        if let Some((_, more)) = first.split_once(", ") {
            roff.control("PP", []);
            roff.text([roman(capitalised(more))]);
        }
        add_verbatim(roff, rest);
    }
}

/// Text that begins with a capital.
fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(rest).collect()
}

/// The other pages, in one line.
fn references(name: &str) -> Vec<Inline> {
    let others = SEE_ALSO.iter().filter(|(page, _)| *page != name);
    let mut line = Vec::new();
    for (page, section) in others {
        let comma = if line.is_empty() { "" } else { ", " };
        line.extend([roman(comma), bold(*page), roman(format!("({section})"))]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandLine, offered};
    use clap::{CommandFactory, Parser};

    fn command() -> Command {
        offered(CommandLine::command().disable_help_subcommand(true))
    }

    fn texts() -> Vec<(String, String)> {
        let pages = pages(command()).into_iter();
        pages.map(|(name, page)| (name, String::from_utf8(page).unwrap())).collect()
    }

    #[test]
    fn every_page_has_the_sections_that_a_reader_looks_for() {
        let pages = texts();
        assert!(pages.len() > 20, "{} pages", pages.len());
        for (name, page) in pages {
            let mut rest = page.as_str();
            for section in ["NAME", "SYNOPSIS", "\"EXIT STATUS\"", "FILES", "EXAMPLES"] {
                let heading = format!("\n.SH {section}\n");
                let Some((_, behind)) = rest.split_once(&heading) else {
                    panic!("{name} has no {section}, or not in its place:\n{page}");
                };
                let body = behind.split("\n.SH ").next().unwrap();
                assert!(body.trim().len() > 10, "{name}: {section} is empty");
                rest = behind;
            }
        }
    }

    /// The commands of a page's examples, those of `--help` among them.
    fn shown(name: &str, command: &Command) -> Vec<String> {
        let paragraphs = Paragraphs::of(command);
        let own = sections(name).examples.iter().map(|(line, _)| (*line).to_owned());
        let joined = paragraphs.examples.join("\n").replace("\\\n   ", "");
        let told = joined.lines().filter(|line| line.starts_with("  lockgate "));
        own.chain(told.map(|line| line.trim().to_owned())).collect()
    }

    fn check_examples(command: &Command, checked: &mut usize) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let begins = name.replace('-', " ");
        for line in shown(&name, command) {
            let command = line.split(['|', '>']).next().unwrap();
            // Several blanks stand in front of an explanation.
            let command = command.split("    ").next().unwrap();
            let words: Vec<String> =
                command.split_whitespace().map(|word| word.replace('\'', "")).collect();
            let parsed = CommandLine::try_parse_from(&words);
            assert!(parsed.is_ok(), "{name}: {line}: {}", parsed.err().unwrap());
            let is_of_page = begins.split(' ').all(|word| words.iter().any(|it| it == word));
            assert!(is_of_page || name == "lockgate", "{name}: {line}");
            *checked += 1;
        }
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            check_examples(sub, checked);
        }
    }

    #[test]
    fn every_example_is_a_command_that_the_program_takes() {
        let (mut command, mut checked) = (command(), 0);
        command.build();
        check_examples(&command, &mut checked);
        assert!(checked > 40, "{checked} examples");
    }

    #[test]
    fn what_help_ends_with_is_shown_once() {
        for (name, page) in texts() {
            assert!(!page.contains('…'), "{name}");
            assert!(!page.contains("Exit codes:"), "{name}");
            assert!(!page.contains("\nExample"), "{name}:\n{page}");
        }
        let capture = texts().into_iter().find(|(name, _)| name == "lockgate-capture.1").unwrap().1;
        assert!(capture.contains(".SH NOTES") && capture.contains("pcap\\-filter"), "{capture}");
    }
}
