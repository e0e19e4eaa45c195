//! Durable records: short texts that name their kind and end with a check of themselves.
//!
//! ```text
//! lockgate KIND 1
//! … lines …
//! check 0123456789abcdef0123456789abcdef
//! ```

use std::fmt::Write;

use aws_lc_rs::digest;

/// The content of a record is damaged, cut, or of another kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged;

/// SHA-256 of a label and bytes, cut to 16 bytes.
pub(crate) fn digest(label: &str, bytes: &[u8]) -> u128 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"lockgate keystate v1 ");
    context.update(label.as_bytes());
    context.update(b"\0");
    context.update(bytes);
    let mut short = [0; 16];
    short.copy_from_slice(&context.finish().as_ref()[..16]);
    u128::from_be_bytes(short)
}

/// A record of these lines.
pub(crate) fn encode(kind: &str, lines: impl IntoIterator<Item = String>) -> String {
    let mut text = format!("lockgate {kind} 1\n");
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    let check = digest("record", text.as_bytes());
    writeln!(text, "check {check:032x}").expect("writing to a string");
    text
}

/// The lines of a record.
pub(crate) fn decode<'a>(
    kind: &str,
    bytes: &'a [u8],
) -> Result<impl Iterator<Item = &'a str> + use<'a>, Damaged> {
    let text = std::str::from_utf8(bytes).map_err(|_| Damaged)?;
    let body = text.strip_suffix('\n').and_then(|text| text.rfind('\n'));
    let (body, check) = text.split_at(body.ok_or(Damaged)? + 1);
    let check = check.strip_prefix("check ").and_then(|hex| hex.strip_suffix('\n'));
    if check.and_then(hex) != Some(digest("record", body.as_bytes())) {
        return Err(Damaged);
    }
    let lines = body.strip_prefix(&format!("lockgate {kind} 1\n")).ok_or(Damaged)?;
    Ok(lines.lines())
}

/// 32 digits in hexadecimal, as they are written here.
pub(crate) fn hex(text: &str) -> Option<u128> {
    let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(kind: &str, bytes: &[u8]) -> Result<Vec<String>, Damaged> {
        decode(kind, bytes).map(|lines| lines.map(str::to_owned).collect())
    }

    #[test]
    fn what_is_written_is_read_and_anything_else_is_damaged() {
        for content in [vec![], vec!["a 1".to_owned()], vec!["a".into(), "b c".into()]] {
            let text = encode("test", content.clone());
            assert_eq!(lines("test", text.as_bytes()), Ok(content));
            assert_eq!(lines("other", text.as_bytes()), Err(Damaged));
            for cut in 0..text.len() {
                assert_eq!(lines("test", &text.as_bytes()[..cut]), Err(Damaged), "cut at {cut}");
            }
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                assert_eq!(lines("test", &bytes), Err(Damaged), "changed at {at}");
            }
            assert_eq!(lines("test", &[text.as_bytes(), b"\n"].concat()), Err(Damaged));
        }
    }
}
