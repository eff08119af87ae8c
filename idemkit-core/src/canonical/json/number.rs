//! Numbers: integers exactly, all others as doubles in shortest form.

use std::fmt::Write as _;

/// The offset just after the number that begins at `start`. Nothing, if it is not a number of JSON.
pub(super) fn end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    if bytes.get(at) == Some(&b'-') {
        at += 1;
    }
    at = match bytes.get(at)? {
        // A second digit after a zero is then one too many, and what follows the number does not parse.
        b'0' => at + 1,
        _ => digits_end(bytes, at)?,
    };
    if bytes.get(at) == Some(&b'.') {
        at = digits_end(bytes, at + 1)?;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let signed = matches!(bytes.get(at + 1), Some(b'+' | b'-'));
        at = digits_end(bytes, at + 1 + usize::from(signed))?;
    }
    Some(at)
}

/// The offset just after one or more digits.
fn digits_end(bytes: &[u8], start: usize) -> Option<usize> {
    let count = bytes.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count > 0).then_some(start + count)
}

/// Writes the number in canonical form.
pub(super) fn write(token: &str, out: &mut String) {
    if token == "-0" {
        out.push('0');
    } else if !token.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        out.push_str(token);
    } else if let Some(value) = parse(token) {
        write_double(value, out);
    } else {
        out.push_str(token);
    }
}

/// The double that is nearest to the number.
fn parse(token: &str) -> Option<f64> {
    // std counts an exponent up to 65,536 only. In a number that is shorter than that no further digits can make up for
    // the rest.
    const STD_TAKES_BYTES: usize = 10_000;
    if token.len() <= STD_TAKES_BYTES { token.parse().ok() } else { parse_long(token) }
}

/// As `parse`, for any length: with the exponent brought close to zero, by as many digits as the point moves.
fn parse_long(token: &str) -> Option<f64> {
    let (sign, magnitude) = token.strip_prefix('-').map_or(("", token), |magnitude| ("-", magnitude));
    let (mantissa, exponent) = magnitude.split_once(['e', 'E']).unwrap_or((magnitude, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    // The number is 0.DIGITS times ten to the power of `point`.
    let (whole, fraction, point) = if whole.is_empty() {
        let digits = fraction.trim_start_matches('0');
        ("", digits, -i128::try_from(fraction.len() - digits.len()).ok()?)
    } else {
        (whole, fraction, i128::try_from(whole.len()).ok()?)
    };
    if whole.is_empty() && fraction.is_empty() {
        return format!("{sign}0.0").parse().ok();
    }
    // Doubles go from 5e-324 to 1.8e308: beyond 400 all is infinite or zero.
    let point = point.saturating_add(parse_exponent(exponent)).clamp(-400, 400);
    format!("{sign}0.{whole}{fraction}e{point}").parse().ok()
}

/// An exponent of any number of digits, saturating.
fn parse_exponent(text: &str) -> i128 {
    let magnitude = text
        .trim_start_matches(['+', '-'])
        .bytes()
        .fold(0_i128, |value, digit| value.saturating_mul(10).saturating_add(i128::from(digit.wrapping_sub(b'0'))));
    if text.starts_with('-') { -magnitude } else { magnitude }
}

/// The fewest digits that tell the double from its neighbours, laid out as Python's `repr` does.
fn write_double(value: f64, out: &mut String) {
    if value.is_sign_negative() {
        out.push('-');
    }
    if value.is_infinite() {
        out.push_str("Infinity");
        return;
    }
    let mut buffer = zmij::Buffer::new();
    let (digits, exponent) = decimal(buffer.format(value.abs()));
    let (first, others) = digits.split_at(usize::from(!digits.is_empty()));
    if digits.is_empty() {
        out.push_str("0.0");
    } else if !(-4..16).contains(&exponent) {
        out.push_str(first);
        if !others.is_empty() {
            out.push('.');
            out.push_str(others);
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        // Writing to a String cannot fail.
        let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
    } else if let Ok(exponent) = usize::try_from(exponent) {
        let whole = exponent + 1;
        let (before, after) = digits.split_at(whole.min(digits.len()));
        out.push_str(before);
        out.extend(std::iter::repeat_n('0', whole - before.len()));
        out.push('.');
        out.push_str(if after.is_empty() { "0" } else { after });
    } else {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', usize::try_from(-1 - exponent).unwrap_or_default()));
        out.push_str(&digits);
    }
}

/// Takes a decimal number apart, however it is laid out: its digits without zeros at either end, and the exponent of
/// the first. Zero has no digits.
fn decimal(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    // Both are at most as long as a double is in text, and zmij writes exponents that fit.
    let place = |count: usize| i32::try_from(count).unwrap_or_default();
    let exponent = exponent.parse().unwrap_or(0) + place(whole.len()) - 1 - place(all.len() - digits.len());
    (digits.trim_end_matches('0').to_owned(), exponent)
}
