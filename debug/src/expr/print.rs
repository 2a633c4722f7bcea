//! Values by type, short.

use crate::dwarf::{Dwarf, Shape, Type};

/// Longest string, most elements and deepest nesting shown.
const MOST_TEXT: usize = 80;
const MOST_ELEMENTS: u64 = 16;
const MOST_DEPTH: usize = 3;

/// The value `bytes` of type `of`, as the debugger shows it. `symbol` names an address of code or data. A value
/// with too few bytes is shown as the bytes it has.
pub fn print(dwarf: &Dwarf, of: &Type, bytes: &[u8], symbol: &dyn Fn(u64) -> Option<String>) -> String {
    show(dwarf, of, bytes, symbol, 0)
}

fn integer(bytes: &[u8], signed: bool) -> i128 {
    let mut wide = [0; 16];
    let size = bytes.len().min(16);
    wide[..size].copy_from_slice(&bytes[..size]);
    let value = u128::from_le_bytes(wide);
    if signed && size > 0 && size < 16 && bytes[size - 1] & 0x80 != 0 {
        (value | (u128::MAX << (size * 8))) as i128
    } else {
        value as i128
    }
}

fn character(value: i128) -> String {
    match u8::try_from(value & 0xff) {
        Ok(byte) if (0x20..0x7f).contains(&byte) => format!("{value} '{}'", char::from(byte)),
        _ => value.to_string(),
    }
}

fn raw(bytes: &[u8]) -> String {
    let shown: Vec<String> = bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
    format!("{}{}", shown.join(" "), if bytes.len() > 32 { " ..." } else { "" })
}

fn show(
    dwarf: &Dwarf,
    of: &Type,
    bytes: &[u8],
    symbol: &dyn Fn(u64) -> Option<String>,
    depth: usize,
) -> String {
    if let Type::Bits(of, at, bits) = of {
        let value = bit_field(bytes, *at, *bits);
        return match dwarf.shape(of) {
            Shape::Integer { signed: true, .. } if (1..64).contains(bits) && value >> (bits - 1) & 1 == 1 => {
                (value - (1 << bits)).to_string()
            }
            Shape::Integer { boolean: true, .. } => (value != 0).to_string(),
            Shape::Enum(_, names) => {
                let known = names.into_iter().find(|(own, _)| *own == value);
                known.map_or_else(|| value.to_string(), |(_, name)| name)
            }
            _ => value.to_string(),
        };
    }
    let shape = dwarf.shape(of);
    if dwarf.size(of).is_some_and(|size| size > bytes.len() as u64) {
        return raw(bytes);
    }
    match shape {
        Shape::Void | Shape::Function | Shape::Other(_) => raw(bytes),
        Shape::Integer { boolean: true, .. } => match bytes.first() {
            Some(0) => "false".into(),
            Some(1) => "true".into(),
            _ => raw(bytes),
        },
        Shape::Integer { size: 1, signed, character: true, .. } => character(integer(&bytes[..1], signed)),
        Shape::Integer { size, signed, .. } => integer(&bytes[..size as usize], signed).to_string(),
        Shape::Float(4) => {
            let value = f32::from_le_bytes(bytes[..4].try_into().unwrap_or_default());
            float(value.into(), &value)
        }
        Shape::Float(8) => {
            let value = f64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
            float(value, &value)
        }
        Shape::Float(16) => extended(&bytes[..10]),
        Shape::Float(_) => raw(bytes),
        Shape::Pointer(_) => {
            let address = integer(&bytes[..8], false) as u64;
            match symbol(address) {
                Some(name) if address != 0 => format!("{address:#x} <{name}>"),
                _ => format!("{address:#x}"),
            }
        }
        Shape::Enum(size, names) => {
            let unsigned = integer(&bytes[..size as usize], false);
            let signed = integer(&bytes[..size as usize], true);
            let known = names.iter().find(|(value, _)| *value == unsigned || *value == signed);
            known.map_or_else(|| signed.to_string(), |(_, name)| name.clone())
        }
        Shape::Array(element, count) => array(dwarf, &element, count, bytes, symbol, depth),
        Shape::Struct(_) if depth >= MOST_DEPTH => "{...}".into(),
        Shape::Struct(_) => {
            if let Some(variant) = dwarf.active(of, bytes) {
                let from = (variant.offset as usize).min(bytes.len());
                let inner = match dwarf.members(&variant.of).is_empty() {
                    true => String::new(),
                    false => format!(" {}", show(dwarf, &variant.of, &bytes[from..], symbol, depth + 1)),
                };
                return format!("{}{inner}", variant.name);
            }
            let parts = dwarf.members(of).into_iter().take(MOST_ELEMENTS as usize).map(|member| {
                // Its place is not among these bytes: the object's virtual table says it.
                if member.dynamic.is_some() {
                    return format!("<virtual {}>", dwarf.type_name(&member.of));
                }
                let from = (member.offset as usize).min(bytes.len());
                let value = match member.bits {
                    Some((at, bits)) => {
                        let of = Type::Bits(Box::new(member.of.clone()), at, bits);
                        show(dwarf, &of, &bytes[from..], symbol, depth + 1)
                    }
                    None => {
                        let size = dwarf.size(&member.of).unwrap_or(0) as usize;
                        let to = from.saturating_add(size).min(bytes.len());
                        show(dwarf, &member.of, &bytes[from..to], symbol, depth + 1)
                    }
                };
                if member.name.is_empty() { value } else { format!("{} = {value}", member.name) }
            });
            format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A number in the fewest digits that are it, `exact`; one that is very large or small with an exponent, as in C.
fn float<F: std::fmt::Display + std::fmt::LowerExp>(value: f64, exact: &F) -> String {
    if value == 0.0 || !value.is_finite() || (1e-5..1e16).contains(&value.abs()) {
        return exact.to_string();
    }
    let text = format!("{exact:e}");
    if text.contains("e-") { text } else { text.replace('e', "e+") }
}

fn bit_field(bytes: &[u8], at: u64, bits: u64) -> i128 {
    let value = integer(&bytes[..bytes.len().min(16)], false) >> at.min(127);
    if bits >= 127 { value } else { value & ((1 << bits) - 1) }
}

/// A number of the x87's 80 bits (Intel SDM vol. 1, 4.2.2), as far as a double holds it.
fn extended(bytes: &[u8]) -> String {
    let mut mantissa = [0; 8];
    mantissa.copy_from_slice(&bytes[..8]);
    let exponent = u16::from_le_bytes([bytes[8], bytes[9]]);
    if exponent & 0x7fff == 0x7fff {
        return raw(bytes);
    }
    let sign = if exponent & 0x8000 != 0 { -1.0 } else { 1.0 };
    let scale = i32::from(exponent & 0x7fff) - 16383 - 63;
    // In two parts, neither of which is too large or too small by itself.
    let value = u64::from_le_bytes(mantissa) as f64 * 2f64.powi(scale / 2) * 2f64.powi(scale - scale / 2);
    float(sign * value, &(sign * value))
}

fn array(
    dwarf: &Dwarf,
    element: &Type,
    count: u64,
    bytes: &[u8],
    symbol: &dyn Fn(u64) -> Option<String>,
    depth: usize,
) -> String {
    let Some(size) = dwarf.size(element).filter(|size| *size > 0) else { return raw(bytes) };
    if let Shape::Integer { size: 1, character: true, .. } = dwarf.shape(element) {
        return text(bytes);
    }
    let shown = count.min(MOST_ELEMENTS);
    let parts = (0..shown).filter_map(|i| {
        let from = usize::try_from(i.checked_mul(size)?).ok()?;
        Some(show(dwarf, element, bytes.get(from..from + size as usize)?, symbol, depth + 1))
    });
    format!("{{{}{}}}", parts.collect::<Vec<_>>().join(", "), if count > shown { ", ..." } else { "" })
}

/// Characters up to the last one that is not NUL: what lies behind a string's end is part of the value too.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let more = if end > MOST_TEXT { "..." } else { "" };
    format!("\"{}\"{more}", bytes[..end.min(MOST_TEXT)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_behind_a_nul() {
        assert_eq!(text(b"plain\0\0\0"), "\"plain\"");
        assert_eq!(text(b"\0\0b\0"), r#""\x00\x00b""#);
        assert_eq!(text(&[0; 4]), "\"\"");
        assert_eq!(text(&[b'x'; 81]), format!("\"{}\"...", "x".repeat(80)));
    }

    #[test]
    fn numbers_of_eighty_bits() {
        assert_eq!(extended(&[0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0x3f]), "1.5");
        assert_eq!(extended(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0x01, 0xc0]), "-4");
        assert_eq!(extended(&[0; 10]), "0");
        let numbers: [(f64, &str); 8] = [
            (0.1, "0.1"),
            (-2.5e-300, "-2.5e-300"),
            (1e300, "1e+300"),
            (1e15, "1000000000000000"),
            (1e16, "1e+16"),
            (-0.0, "-0"),
            (f64::NEG_INFINITY, "-inf"),
            (0.00001, "0.00001"),
        ];
        for (value, text) in numbers {
            assert_eq!(float(value, &value), text);
        }
        assert_eq!(float(f64::from(3.4e38f32), &3.4e38f32), "3.4e+38");
    }

    #[test]
    fn some_bits() {
        assert_eq!(bit_field(&[141], 3, 5), 17);
        assert_eq!(bit_field(&[141], 0, 3), 5);
    }
}
