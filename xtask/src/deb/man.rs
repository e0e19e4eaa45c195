//! Manual pages out of the project's Markdown documents, so that neither is older than the other.
//!
//! The subset that our documents use: headings, paragraphs, lists, tables, code, emphasis, links.
//! A table becomes a list of its first column with the others below. The pages of the command
//! come from its argument parser instead (`lockgate generate man`).

use std::fmt::Write;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A page, and the document that it is made from.
pub(super) struct Page {
    /// `lockgated.8`.
    pub(super) name: &'static str,
    /// The program's or file's purpose, in a line.
    about: &'static str,
    synopsis: &'static str,
    /// The document, from the workspace's root.
    from: &'static str,
    /// References that follow the document, each as a section of this heading.
    references: &'static [(&'static str, &'static str)],
    /// Sections that follow the document, in Markdown; those that it has itself are left out.
    appendix: &'static str,
}

/// Pages that no argument parser makes.
pub(super) const PAGES: &[Page] = &[
    Page {
        name: "lockgated.8",
        about: "IPsec gateway in user space",
        synopsis: ".B lockgated\n.B \\-\\-config\n.I FILE\n.RB [ \\-\\-guard\\-only ]\n",
        from: "docs/OPERATION.md",
        references: &[("Event kinds", "docs/reference/events.md")],
        appendix: "\
## Exit status

| | |
|---|---|
| `0` | it was told to end, and ended |
| `1` | it could not start or go on: the message says why and what to do |
| `2` | the configuration or a key file is wrong; the unit does not start it again |
| `3` | the file of sequence numbers in `run_dir` was made shorter under it |

## Files

| | |
|---|---|
| `/etc/lockgate/lockgate.toml` | the configuration, lockgate.toml(5) |
| `/run/lockgate/api.sock` | the socket that lockgate(1) asks |
| `/var/lib/lockgate` | reservations of sequence numbers, revisions |

## Examples

As the package starts it, and what it says then:

```
systemctl enable --now lockgated
systemctl status lockgated
```

By hand, with another configuration:

```
lockgate check gw-a.toml
lockgated --config gw-a.toml
```
",
    },
    Page {
        name: "lockgate.toml.5",
        about: "configuration of lockgated",
        synopsis: ".I /etc/lockgate/lockgate.toml\n",
        from: "docs/CONFIGURATION.md",
        references: &[],
        appendix: "\
## Exit status

`lockgate check` ends with 0 if a file can be used, with 1 if it is wrong. `lockgated` ends with 2
if its file is wrong.

## Files

| | |
|---|---|
| `/etc/lockgate/lockgate.toml` | the configuration that the package's daemon starts with |
| `/etc/lockgate/*.keys` | keys of the peers, unless `keys_dir` names another folder |
| `/usr/share/doc/lockgate/examples/lockgate.toml` | a whole example |

## Examples

```
lockgate init
lockgate check /etc/lockgate/lockgate.toml
lockgate check /etc/lockgate/lockgate.toml --effective
```
",
    },
];

impl Page {
    /// Returns the document and its references as one text; `read` reads a file of the workspace.
    pub(super) fn markdown<E>(
        &self,
        read: impl Fn(&str) -> Result<String, E>,
    ) -> Result<String, E> {
        let mut text = read(self.from)?;
        for (heading, file) in self.references {
            text += &format!("\n## {heading}\n\n{}", read(file)?);
        }
        Ok(text)
    }

    /// The page as man(7) reads it; `day` is `2026-08-30`.
    pub(super) fn roff(&self, day: &str, markdown: &str) -> String {
        let (title, section) = self.name.rsplit_once('.').expect("a section");
        let mut writer = Writer::default();
        let version = env!("CARGO_PKG_VERSION");
        writer.macro_line(&format!(
            ".TH {} {section} {day} \"Lockgate {version}\"",
            escaped(&title.to_uppercase())
        ));
        writer.macro_line(".SH NAME");
        writer.macro_line(&format!("{} \\- {}", escaped(title), escaped(self.about)));
        writer.macro_line(".SH SYNOPSIS");
        writer.out.push_str(self.synopsis);
        writer.macro_line(".SH DESCRIPTION");
        writer.markdown(markdown);
        for section in self.appendix.split("## ").filter(|section| !section.is_empty()) {
            let heading = section.lines().next().unwrap_or_default().to_uppercase();
            if !writer.has_section(&heading) {
                writer.markdown(&format!("## {section}"));
            }
        }
        writer.macro_line(".SH SEE ALSO");
        let others = ["lockgate(1)", "lockgate.toml(5)", "lockgated(8)"];
        let others: Vec<&str> =
            others.into_iter().filter(|page| !page.starts_with(&format!("{title}("))).collect();
        writer.macro_line(&others.join(", "));
        writer.out
    }
}

#[derive(Default)]
struct Writer {
    out: String,
    /// Text that goes somewhere else first: a heading, a cell.
    held: Option<String>,
    table: Table,
    /// Numbers of the lists that we are in; `None`: bullets.
    lists: Vec<Option<u64>>,
    in_code: bool,
    /// A paragraph that a list's item begins with needs no macro.
    begins_item: bool,
}

#[derive(Default)]
struct Table {
    heads: Vec<String>,
    row: Vec<String>,
}

impl Writer {
    fn markdown(&mut self, text: &str) {
        Parser::new_ext(text, Options::ENABLE_TABLES).for_each(|event| self.event(event));
    }

    /// Returns whether a section of this heading is there already.
    fn has_section(&self, heading: &str) -> bool {
        self.out.lines().any(|line| line.strip_prefix(".SH ").is_some_and(|it| it == heading))
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.in_code => self.code(&text),
            Event::Text(text) => self.text(&escaped(&text)),
            Event::Code(code) => self.text(&format!("\\fB{}\\fR", escaped(&code))),
            Event::SoftBreak => self.text("\n"),
            Event::HardBreak => self.macro_line(".br"),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::TableCell => self.held = Some(String::new()),
            Tag::Paragraph if self.begins_item => self.begins_item = false,
            Tag::Paragraph if self.lists.is_empty() => self.macro_line(".PP"),
            Tag::Paragraph => self.macro_line(".IP"),
            Tag::CodeBlock(_) => {
                self.macro_line(".PP\n.RS 4\n.nf");
                self.in_code = true;
            }
            Tag::List(first) => self.lists.push(first),
            Tag::Item => {
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!(".IP {}. 4", *number - 1)
                    }
                    _ => ".IP \\(bu 3".into(),
                };
                self.macro_line(&mark);
                self.begins_item = true;
            }
            Tag::Table(_) => self.table = Table::default(),
            Tag::Emphasis => self.text("\\fI"),
            Tag::Strong => self.text("\\fB"),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let text = self.held.take().unwrap_or_default();
                match level {
                    // The page has its title already.
                    HeadingLevel::H1 => {}
                    HeadingLevel::H2 => self.macro_line(&format!(".SH {}", upper(&text))),
                    _ => self.macro_line(&format!(".SS {text}")),
                }
            }
            TagEnd::CodeBlock => {
                self.in_code = false;
                self.macro_line(".fi\n.RE");
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::TableCell => self.table.row.push(self.held.take().unwrap_or_default()),
            TagEnd::TableHead => self.table.heads = std::mem::take(&mut self.table.row),
            TagEnd::TableRow => self.row(),
            TagEnd::Emphasis | TagEnd::Strong => self.text("\\fR"),
            _ => {}
        }
    }

    /// A row: its first cell as the term, the others below it.
    fn row(&mut self) {
        let row = std::mem::take(&mut self.table.row);
        let heads = self.table.heads.clone();
        self.macro_line(&format!(".TP\n{}", guarded(row.first().map_or("", String::as_str))));
        for (head, cell) in heads.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
            match head.is_empty() {
                true => self.macro_line(&guarded(cell)),
                false => self.macro_line(&guarded(&format!("{head}: {cell}."))),
            }
        }
    }

    fn code(&mut self, text: &str) {
        for line in text.lines() {
            let line = guarded(&escaped(line));
            self.macro_line(if line.is_empty() { "\\&" } else { &line });
        }
    }

    /// Running text, already escaped.
    fn text(&mut self, text: &str) {
        match &mut self.held {
            Some(held) => held.push_str(text),
            None if self.out.ends_with('\n') => {
                self.begins_item = false;
                self.out.push_str(&guarded(text.trim_start()));
            }
            None => self.out.push_str(text),
        }
    }

    /// A line of its own.
    fn macro_line(&mut self, line: &str) {
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        writeln!(self.out, "{line}").expect("writing to a string");
    }
}

/// Text in which roff sees nothing to do.
fn escaped(text: &str) -> String {
    // A terminal without UTF-8 would show nothing in place of the first two.
    text.replace('…', "...")
        .replace('§', "section ")
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq")
        .replace('`', "\\(ga")
}

/// Guards a dot at the beginning of a line, where it would be a request.
fn guarded(line: &str) -> String {
    if line.starts_with('.') { format!("\\&{line}") } else { line.to_owned() }
}

/// Capitals, but not of escapes.
fn upper(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\f") {
        out.push_str(&rest[..at].to_uppercase());
        out.push_str(&rest[at..at + 3]);
        rest = &rest[at + 3..];
    }
    out + &rest.to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_are_a_section_of_the_daemons_page() {
        let read = |file: &str| std::fs::read_to_string(crate::root().join(file));
        let page = PAGES[0].roff("2026-01-02", &PAGES[0].markdown(read).unwrap());
        let (_, kinds) = page.split_once(".SH EVENT KINDS\n").unwrap();
        assert!(kinds.contains(".TP\n\\fBpeer_silent\\fR\nseverity: warning."), "{kinds}");
    }

    #[test]
    fn a_document_becomes_a_page() {
        let markdown = "# Title\n\nOne `a-b` and *two*\n.three.\n\n## Files\n\n\
            | key | default | |\n|---|---|---|\n| `mtu` | `1500` | largest |\n\n\
            1. first\n2. second\n\n- dot\n\n```\nrun \\n --x\n.hidden\n\n```\n\n## More of `x`\n";
        let page = PAGES[0].roff("2026-01-02", markdown);
        let version = env!("CARGO_PKG_VERSION");
        assert!(page.starts_with(&format!(".TH LOCKGATED 8 2026-01-02 \"Lockgate {version}\"\n")));
        let body = page.split(".SH DESCRIPTION\n").nth(1).unwrap();
        // What the document has itself is not added.
        let (body, appendix) = body.split_once(".SH EXIT STATUS\n").unwrap();
        assert!(appendix.contains(".SH EXAMPLES\n") && !appendix.contains(".SH FILES\n"));
        assert!(appendix.ends_with(".SH SEE ALSO\nlockgate(1), lockgate.toml(5)\n"));
        assert_eq!(
            body,
            ".PP\nOne \\fBa\\-b\\fR and \\fItwo\\fR\n\\&.three.\n.SH FILES\n\
             .TP\n\\fBmtu\\fR\ndefault: \\fB1500\\fR.\nlargest\n\
             .IP 1. 4\nfirst\n.IP 2. 4\nsecond\n.IP \\(bu 3\ndot\n\
             .PP\n.RS 4\n.nf\nrun \\en \\-\\-x\n\\&.hidden\n\\&\n.fi\n.RE\n\
             .SH MORE OF \\fBX\\fR\n"
        );
    }
}
