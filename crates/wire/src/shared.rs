//! Structs that a C program reads and writes as well, declared once, here in Rust:
//! [`shared_struct!`](crate::shared_struct) makes of one list of fields the Rust struct, its bytes,
//! and its C definition, which a build script writes into a header.
//!
//! Numbers are in the machine's order. Bytes are read and written field by field at the offsets
//! that Rust gave them, so no memory is reinterpreted; the C definition asserts that C gave the
//! same ones.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// A value that has the same bytes in C and in Rust.
pub trait Shared: Sized {
    /// Returns the C declaration of a variable of this type and this name.
    fn declaration(name: &str) -> String;

    /// Returns the value that begins with the first of these bytes; those that are missing are 0.
    fn read(bytes: &[u8]) -> Self;

    /// Writes its bytes over the first of these, as many as there are.
    fn write(&self, bytes: &mut [u8]);

    /// Returns the value whose bytes are all 0.
    fn zeroed() -> Self {
        Self::read(&[])
    }

    /// Returns its bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<Self>()];
        self.write(&mut bytes);
        bytes
    }
}

/// A struct that [`shared_struct!`](crate::shared_struct) declared.
pub trait SharedStruct: Shared {
    /// Returns its C definition, and assertions that C lays it out as Rust does.
    fn definition() -> String;
}

macro_rules! numbers {
    ($($number:ty as $c:literal),+) => {
        $(impl Shared for $number {
            fn declaration(name: &str) -> String {
                format!("{} {name}", $c)
            }

            #[inline]
            fn read(bytes: &[u8]) -> $number {
                bytes.first_chunk().map_or(0, |bytes| <$number>::from_ne_bytes(*bytes))
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                for (byte, own) in bytes.iter_mut().zip(self.to_ne_bytes()) {
                    *byte = own;
                }
            }
        })+
    };
}

numbers!(u8 as "__u8", u16 as "__u16", u32 as "__u32", u64 as "__u64");

impl<T: Shared, const N: usize> Shared for [T; N] {
    fn declaration(name: &str) -> String {
        T::declaration(&format!("{name}[{N}]"))
    }

    #[inline]
    fn read(bytes: &[u8]) -> [T; N] {
        core::array::from_fn(|place| T::read(bytes.get(place * size_of::<T>()..).unwrap_or(&[])))
    }

    #[inline]
    fn write(&self, bytes: &mut [u8]) {
        for (value, bytes) in self.iter().zip(bytes.chunks_mut(size_of::<T>())) {
            value.write(bytes);
        }
    }
}

/// Returns the C definition of a struct with these fields: each its name, declaration and offset.
pub fn definition(name: &str, size: usize, fields: &[(&str, String, usize)]) -> String {
    let mut definition = format!("struct {name} {{\n");
    for (_, declaration, _) in fields {
        definition += &format!("\t{declaration};\n");
    }
    definition += "};\n";
    let mut assert = |c: String, rust: usize| {
        definition += &format!("_Static_assert({c} == {rust}, \"{c}\");\n");
    };
    assert(format!("sizeof(struct {name})"), size);
    for (field, _, offset) in fields {
        assert(format!("__builtin_offsetof(struct {name}, {field})"), *offset);
    }
    definition
}

/// Declares a struct that a C program knows by the name behind `as`, and implements [`Shared`] and
/// [`SharedStruct`] for it. It must need no padding: a map's key is compared with all its bytes.
#[macro_export]
macro_rules! shared_struct {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident as $c:literal {
            $($(#[$field_about:meta])* $field_visible:vis $field:ident: $kind:ty,)+
        }
    ) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $visible struct $name {
            $($(#[$field_about])* $field_visible $field: $kind,)+
        }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$kind>())+,
            "a shared struct needs padding: reorder its fields, or reserve one",
        );

        impl $crate::shared::Shared for $name {
            fn declaration(name: &str) -> String {
                [concat!("struct ", $c, " "), name].concat()
            }

            #[inline]
            fn read(bytes: &[u8]) -> $name {
                $name {
                    $($field: $crate::shared::Shared::read(
                        bytes.get(::core::mem::offset_of!($name, $field)..).unwrap_or(&[]),
                    ),)+
                }
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                $(if let Some(bytes) = bytes.get_mut(::core::mem::offset_of!($name, $field)..) {
                    $crate::shared::Shared::write(&self.$field, bytes);
                })+
            }
        }

        impl $crate::shared::SharedStruct for $name {
            fn definition() -> String {
                $crate::shared::definition($c, size_of::<$name>(), &[$((
                    stringify!($field),
                    <$kind as $crate::shared::Shared>::declaration(stringify!($field)),
                    ::core::mem::offset_of!($name, $field),
                ),)+])
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    shared_struct! {
        #[derive(PartialEq, Debug)]
        struct Inner as "inner" {
            first: u8,
            second: u8,
            third: u16,
        }
    }

    shared_struct! {
        #[derive(PartialEq, Debug)]
        struct Outer as "outer" {
            word: u32,
            pair: [Inner; 2],
            grid: [[u8; 4]; 3],
            long: u64,
        }
    }

    const VALUE: Outer = Outer {
        word: 0x0102_0304,
        pair: [
            Inner { first: 5, second: 6, third: 0x0708 },
            Inner { first: 9, second: 10, third: 11 },
        ],
        grid: [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]],
        long: 0x1122_3344_5566_7788,
    };

    #[test]
    fn the_bytes_are_those_of_the_fields_in_the_machines_order() {
        let bytes = [
            &0x0102_0304u32.to_ne_bytes()[..],
            &[5, 6],
            &0x0708u16.to_ne_bytes(),
            &[9, 10],
            &11u16.to_ne_bytes(),
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            &0x1122_3344_5566_7788u64.to_ne_bytes(),
        ]
        .concat();
        assert_eq!(VALUE.bytes(), bytes);
        assert_eq!(Outer::read(&bytes), VALUE);
    }

    #[test]
    fn missing_bytes_read_as_zero_and_are_not_written() {
        let bytes = VALUE.bytes();
        for length in 0..bytes.len() {
            let mut short = vec![0; length];
            VALUE.write(&mut short);
            assert_eq!(short, bytes[..length]);
            // Whole numbers are read; one that is cut off is 0.
            let read = Outer::read(&bytes[..length]);
            assert_eq!(read.word, if length < 4 { 0 } else { VALUE.word });
            assert_eq!(read.long, 0);
        }
        assert_eq!(Outer::zeroed().bytes(), vec![0; bytes.len()]);
    }

    #[test]
    fn the_c_definition_has_every_field_and_asserts_its_place() {
        let definition = Outer::definition();
        assert!(definition.starts_with(
            "struct outer {\n\t__u32 word;\n\tstruct inner pair[2];\n\t__u8 grid[3][4];\n\t__u64 \
             long;\n};\n_Static_assert(sizeof(struct outer) == 32, \"sizeof(struct outer)\");\n"
        ));
        assert!(definition.ends_with(
            "_Static_assert(__builtin_offsetof(struct outer, long) == 24, \
             \"__builtin_offsetof(struct outer, long)\");\n"
        ));
    }
}
