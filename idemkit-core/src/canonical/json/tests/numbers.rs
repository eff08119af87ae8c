use rstest::rstest;

use super::*;

#[rstest]
#[case("0", "0")]
#[case("-0", "0")]
#[case("-1", "-1")]
#[case("7", "7")]
#[case("12345678901234567890123456789012345678901234567890", "12345678901234567890123456789012345678901234567890")]
#[case("-9007199254740993", "-9007199254740993")]
#[case("9007199254740993", "9007199254740993")]
#[case("18446744073709551616", "18446744073709551616")]
#[case("1.0", "1.0")]
#[case("1.50", "1.5")]
#[case("0.0", "0.0")]
#[case("-0.0", "-0.0")]
#[case("0e0", "0.0")]
#[case("-0e5", "-0.0")]
#[case("0.000e-999", "0.0")]
#[case("1e0", "1.0")]
#[case("1E0", "1.0")]
#[case("1e+0", "1.0")]
#[case("1e-0", "1.0")]
#[case("1e00", "1.0")]
#[case("1e05", "100000.0")]
#[case("1.5E+3", "1500.0")]
#[case("12.5e-1", "1.25")]
#[case("1e15", "1000000000000000.0")]
#[case("1e16", "1e+16")]
#[case("1E+16", "1e+16")]
#[case("123456789012345680.0", "1.2345678901234568e+17")]
#[case("12345678901234567.0", "1.2345678901234568e+16")]
#[case("9999999999999998.0", "9999999999999998.0")]
#[case("9999999999999999.0", "1e+16")]
#[case("999999999999999.9", "999999999999999.9")]
#[case("1e22", "1e+22")]
#[case("1e21", "1e+21")]
#[case("1e23", "1e+23")]
#[case("1.5e16", "1.5e+16")]
#[case("0.0001", "0.0001")]
#[case("1e-4", "0.0001")]
#[case("0.00010", "0.0001")]
#[case("0.00012345", "0.00012345")]
#[case("9.9e-5", "9.9e-05")]
#[case("1e-5", "1e-05")]
#[case("0.00001", "1e-05")]
#[case("1.5e-5", "1.5e-05")]
#[case("1e-9", "1e-09")]
#[case("1e-10", "1e-10")]
#[case("1e-100", "1e-100")]
#[case("123e-7", "1.23e-05")]
#[case("5e-324", "5e-324")]
#[case("4.9e-324", "5e-324")]
#[case("2.4703282292062327e-324", "0.0")]
#[case("2.4703282292062328e-324", "5e-324")]
#[case("1e-400", "0.0")]
#[case("-1e-400", "-0.0")]
#[case("2.2250738585072014e-308", "2.2250738585072014e-308")]
#[case("2.2250738585072011e-308", "2.225073858507201e-308")]
#[case("1.7976931348623157e308", "1.7976931348623157e+308")]
#[case("1.7976931348623158e308", "1.7976931348623157e+308")]
#[case("1.7976931348623159e308", "Infinity")]
#[case("1e308", "1e+308")]
#[case("1e309", "Infinity")]
#[case("1e400", "Infinity")]
#[case("-1e400", "-Infinity")]
#[case("1e99999999999999999999", "Infinity")]
#[case("-1e99999999999999999999", "-Infinity")]
#[case("1e-99999999999999999999", "0.0")]
#[case("0e99999999999999999999", "0.0")]
#[case("0.1", "0.1")]
#[case("0.2", "0.2")]
#[case("0.30000000000000004", "0.30000000000000004")]
#[case("0.3", "0.3")]
#[case("100.0", "100.0")]
#[case("1234.5678", "1234.5678")]
#[case("1e2", "100.0")]
#[case("9007199254740993.0", "9007199254740992.0")]
#[case("9007199254740992.5", "9007199254740992.0")]
#[case("9007199254740993.5", "9007199254740994.0")]
#[case("4503599627370496.5", "4503599627370496.0")]
#[case("9.5367431640625e-07", "9.5367431640625e-07")]
#[case("8.41e21", "8.41e+21")]
#[case("2.0e-3", "0.002")]
#[case("1.00000000000000011102230246251565", "1.0")]
#[case("1.00000000000000011102230246251566", "1.0000000000000002")]
#[case("6.631236846766476e-316", "6.63123685e-316")]
#[case("3.2378839133029012895883524125015321748630094231e-319", "3.23786e-319")]
#[case("9223372036854775807.0", "9.223372036854776e+18")]
#[case("4.35", "4.35")]
#[case("5e-5", "5e-05")]
#[case("20e-6", "2e-05")]
#[case("1.0e+05", "100000.0")]
#[case("1000000000000000000000000e-8", "1e+16")]
fn table(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given, expected);
    assert_canonical(
        format!("[{given},{given} , {{\"a\":{given}}}]"),
        &format!("[{expected},{expected},{{\"a\":{expected}}}]"),
    );
}

#[rstest]
#[case("01")]
#[case("00")]
#[case("-01")]
#[case("00.1")]
#[case("-")]
#[case("--1")]
#[case("+1")]
#[case("- 1")]
#[case("1.")]
#[case(".5")]
#[case("-.5")]
#[case("1.e5")]
#[case("1e")]
#[case("1e+")]
#[case("1e-")]
#[case("1e1.5")]
#[case("1e1e1")]
#[case("1e+-1")]
#[case("e1")]
#[case("1.5.5")]
#[case("1..5")]
#[case("0x10")]
#[case("1_000")]
#[case("1,000")]
#[case("1f")]
#[case("1e5f")]
#[case("1n")]
#[case("-a")]
#[case("-\"a\"")]
#[case("1-")]
#[case("1+1")]
#[case("inf")]
#[case("nan")]
#[case("-inf")]
#[case("-infinity")]
#[case("٣")]
#[case("1٣")]
#[case("1.٣")]
fn no_numbers(#[case] given: &str) {
    assert_refused(given);
    assert_refused(format!("[{given} ]"));
}

/// Every integer is kept exactly, those included that Python refuses to read for their length (4,300 digits).
#[test]
fn integers_of_any_size() {
    let digits = "1234567890".repeat(100_000);
    assert_canonical(&digits, &digits);
    assert_canonical(format!("-{digits}"), &format!("-{digits}"));
}

/// std's parser saturates exponents at 65,536 and more, which is wrong if the digits make up for them.
#[rstest]
#[case("0.ZEROS1e1000001", "1.0")]
#[case("-0.ZEROS15e1000001", "-1.5")]
#[case("0.ZEROS1e1000017", "1e+16")]
#[case("1ZEROSe-1000000", "1.0")]
#[case("1ZEROS.0e-1000004", "0.0001")]
#[case("12ZEROS.5E-1000006", "1.2e-05")]
#[case("0.ZEROSe1000000", "0.0")]
#[case("-0.ZEROSe-5", "-0.0")]
#[case("0.ZEROS1", "0.0")]
#[case("1ZEROS.0", "Infinity")]
#[case("-1ZEROSe-999000", "-Infinity")]
#[case("1ZEROSe-1000400", "0.0")]
#[case("1.ZEROS", "1.0")]
#[case("1.ZEROS1", "1.0")]
#[case("1e0ZEROS5", "100000.0")]
#[case("1e-0ZEROS5", "1e-05")]
#[case("1e1ZEROS", "Infinity")]
#[case("-1e-1ZEROS", "-0.0")]
#[case("0.ZEROS1e1ZEROS", "Infinity")]
#[case("1ZEROSe-1ZEROS", "0.0")]
// The millionth digit decides which way a number half way between two doubles is rounded.
#[case("9007199254740993.ZEROS", "9007199254740992.0")]
#[case("9007199254740993.ZEROS1", "9007199254740994.0")]
fn numbers_as_long_as_bodies_are(#[case] given: &str, #[case] expected: &str) {
    assert_canonical(given.replace("ZEROS", &"0".repeat(1_000_000)), expected);
}

/// At the length from which numbers are parsed another way, both ways give the same.
#[test]
fn both_ways_of_parsing_agree() {
    for (digits, exponent, expected) in
        [("1", 0, "1.0"), ("17976931348623157", 308 - 16, "1.7976931348623157e+308"), ("5", -324, "5e-324")]
    {
        for zeros in (9_950..10_050).chain(65_500..65_560) {
            let exponent = exponent + i32::try_from(zeros).unwrap();
            assert_canonical(
                format!("{digits}{}e{}", "0".repeat(zeros), exponent - 2 * i32::try_from(zeros).unwrap()),
                expected,
            );
            assert_canonical(
                format!("0.{}{digits}e{}", "0".repeat(zeros), exponent + i32::try_from(digits.len()).unwrap()),
                expected,
            );
        }
    }
}
