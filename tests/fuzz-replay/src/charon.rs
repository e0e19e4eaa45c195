//! The messages between the daemon and charon's plugin.

use charon_link::{
    Malformed, Told, decode, decode_told, encode_answer, encode_report, encode_request,
};

/// Takes the input as a message of the plugin, and as one of the daemon.
pub fn charon(data: &[u8]) {
    match decode(data) {
        Ok((header, request)) => {
            let again = encode_request(header.number, header.incarnation, &request);
            let again = decode(&again).expect("a message that we wrote");
            assert_eq!(again, (header, request));
        }
        // Whatever is wrong with it, an answer finds its number if there is one.
        Err(Malformed::Magic | Malformed::Length(_)) => {}
        Err(_) => assert!(Malformed::header_of(data).is_some()),
    }
    if let Ok((header, told)) = decode_told(data) {
        let again = match &told {
            Told::Answer(answer) => encode_answer(&header, header.incarnation, answer),
            Told::Report(report) => encode_report(header.incarnation, report),
        };
        let (_, again) = decode_told(&again).expect("a message that we wrote");
        assert_eq!(again, told);
    }
}
