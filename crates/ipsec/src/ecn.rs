//! Explicit congestion notification through a tunnel (RFC 6040).
//!
//! The ECN field is the low two bits of the IPv4 type of service and the IPv6 traffic class.

/// Bits of the traffic class that are the ECN field.
pub const MASK: u8 = 0b11;
/// The transport does not speak ECN.
pub const NOT_ECT: u8 = 0b00;
/// ECN-capable transport, codepoint 1.
pub const ECT_1: u8 = 0b01;
/// ECN-capable transport, codepoint 0.
pub const ECT_0: u8 = 0b10;
/// Congestion experienced.
pub const CE: u8 = 0b11;

/// ECN field of the outer header: the inner one, copied (normal mode, RFC 6040 §4.1). Bits above
/// the field are ignored.
pub const fn encapsulate(inner: u8) -> u8 {
    inner & MASK
}

/// ECN field of the packet that leaves the tunnel, from the fields that arrived (RFC 6040 §4.2,
/// Figure 4). `None`: congestion was marked outside on a packet whose transport cannot hear of
/// it, and the only way left to tell it is to drop the packet. Bits above the fields are ignored.
pub const fn decapsulate(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_field_is_the_inner_one_whatever_stands_above_it() {
        for traffic_class in 0..=255 {
            assert_eq!(encapsulate(traffic_class), traffic_class % 4);
        }
    }

    #[test]
    fn decapsulation_is_the_table_of_rfc_6040_figure_4() {
        const OUTER: [u8; 4] = [NOT_ECT, ECT_0, ECT_1, CE];
        #[rustfmt::skip]
        let figure_4 = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0,   [Some(ECT_0),   Some(ECT_0),   Some(ECT_1),   Some(CE)]),
            (ECT_1,   [Some(ECT_1),   Some(ECT_1),   Some(ECT_1),   Some(CE)]),
            (CE,      [Some(CE),      Some(CE),      Some(CE),      Some(CE)]),
        ];
        for (inner, row) in figure_4 {
            for (outer, expected) in OUTER.into_iter().zip(row) {
                for dscp in [0, 0x2e << 2, 0xfc] {
                    let got = decapsulate(inner | dscp, outer | dscp);
                    assert_eq!(got, expected, "inner {inner:02b} outer {outer:02b}");
                }
            }
        }
    }
}
