//! The lines between a host and a card that is a process.

use card_link::{Lines, Report, Request, decode_report, decode_request, encode};

/// Bytes of a line at most, here.
const MOST: usize = 64;

/// Takes the input as a line of a host, as one of a card, and as a stream of lines that comes in
/// pieces of a size that its first byte says.
pub fn card_link(data: &[u8]) {
    if let Ok(request) = decode_request(data) {
        let again: Request = decode_request(&encode(&request)).expect("a line that we wrote");
        assert_eq!(again, request);
    }
    if let Ok(report) = decode_report(data) {
        let again: Report = decode_report(&encode(&report)).expect("a line that we wrote");
        assert_eq!(again, report);
    }
    if let Some((size, stream)) = data.split_first() {
        let pieces = stream.chunks(usize::from(*size).max(1));
        assert_eq!(lines(pieces), lines(std::iter::once(stream)));
    }
}

/// The lines of a stream, up to the first that is too long.
fn lines<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let (mut lines, mut found) = (Lines::up_to(MOST), Vec::new());
    for piece in pieces {
        lines.extend(piece);
        loop {
            match lines.take() {
                Ok(Some(line)) => {
                    assert!(line.len() < MOST && !line.contains(&b'\n'));
                    found.push(line.to_vec());
                }
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}
