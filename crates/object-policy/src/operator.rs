//! [`Operator`]: how a condition compares.

/// An operator of conditions, from its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operator {
    pub(crate) quantifier: Quantifier,
    pub(crate) test: Test,
    /// The test must fail.
    pub(crate) negated: bool,
    /// A key that the request does not have is as wanted.
    pub(crate) if_exists: bool,
}

/// Which values of the request's are to be as wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantifier {
    /// One; all of them, when the test is negated.
    Plain,
    /// All, if there are any.
    ForAll,
    /// One at least.
    ForAny,
}

/// How a value is compared with those of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    Text { wildcards: bool, ignore_case: bool },
    Arn,
    Number(Order),
    Date(Order),
    Bool,
    Bytes,
    Address,
    Null,
}

/// What a value is to the policy's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    pub(crate) fn holds<T: PartialOrd>(self, value: T, wanted: T) -> bool {
        match self {
            Order::Equal => value == wanted,
            Order::Less => value < wanted,
            Order::LessOrEqual => value <= wanted,
            Order::Greater => value > wanted,
            Order::GreaterOrEqual => value >= wanted,
        }
    }

    /// From the end of an operator's name.
    fn parse(name: &str) -> Option<(Order, bool)> {
        Some(match name {
            "Equals" => (Order::Equal, false),
            "NotEquals" => (Order::Equal, true),
            "LessThan" => (Order::Less, false),
            "LessThanEquals" => (Order::LessOrEqual, false),
            "GreaterThan" => (Order::Greater, false),
            "GreaterThanEquals" => (Order::GreaterOrEqual, false),
            _ => return None,
        })
    }
}

impl Operator {
    /// From a name, with its prefix and suffix.
    pub(crate) fn parse(name: &str) -> Option<Operator> {
        let (quantifier, name) = if let Some(rest) = name.strip_prefix("ForAllValues:") {
            (Quantifier::ForAll, rest)
        } else if let Some(rest) = name.strip_prefix("ForAnyValue:") {
            (Quantifier::ForAny, rest)
        } else {
            (Quantifier::Plain, name)
        };
        let (name, if_exists) = match name.strip_suffix("IfExists") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let (test, negated) = test(name)?;
        if test == Test::Null && (if_exists || quantifier != Quantifier::Plain) {
            return None;
        }
        Some(Operator { quantifier, test, negated, if_exists })
    }
}

/// The test of that name, and whether it is negated.
fn test(name: &str) -> Option<(Test, bool)> {
    let text = |wildcards, ignore_case| Test::Text { wildcards, ignore_case };
    if let Some(rest) = name.strip_prefix("Numeric") {
        return Order::parse(rest).map(|(order, negated)| (Test::Number(order), negated));
    }
    if let Some(rest) = name.strip_prefix("Date") {
        return Order::parse(rest).map(|(order, negated)| (Test::Date(order), negated));
    }
    Some(match name {
        "StringEquals" => (text(false, false), false),
        "StringNotEquals" => (text(false, false), true),
        "StringEqualsIgnoreCase" => (text(false, true), false),
        "StringNotEqualsIgnoreCase" => (text(false, true), true),
        "StringLike" => (text(true, false), false),
        "StringNotLike" => (text(true, false), true),
        "Bool" => (Test::Bool, false),
        "BinaryEquals" => (Test::Bytes, false),
        "IpAddress" => (Test::Address, false),
        "NotIpAddress" => (Test::Address, true),
        "ArnEquals" | "ArnLike" => (Test::Arn, false),
        "ArnNotEquals" | "ArnNotLike" => (Test::Arn, true),
        "Null" => (Test::Null, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_prefixes_and_suffixes() {
        let plain = Operator::parse("StringNotLike").expect("parses");
        let test = Test::Text { wildcards: true, ignore_case: false };
        let quantifier = Quantifier::Plain;
        assert_eq!(plain, Operator { quantifier, test, negated: true, if_exists: false });
        let full = Operator::parse("ForAllValues:StringNotLikeIfExists").expect("parses");
        assert_eq!(full, Operator { quantifier: Quantifier::ForAll, if_exists: true, ..plain });
        let any = Operator::parse("ForAnyValue:NumericLessThanEquals").expect("parses");
        assert_eq!((any.quantifier, any.negated), (Quantifier::ForAny, false));
        assert_eq!(any.test, Test::Number(Order::LessOrEqual));
    }

    #[test]
    fn names_that_are_no_operator_are_refused() {
        for name in [
            "",
            "IfExists",
            "stringequals",
            "StringEqual",
            "NumericLike",
            "Numeric",
            "BoolIfExist",
            "NullIfExists",
            "ForAllValues:Null",
            "ForAnyValue:",
            "ForAllValues:ForAnyValue:Bool",
            "NotBool",
            "BinaryNotEquals",
            "BoolIfExistsIfExists",
            "IpAddressEquals",
            "DateLike",
        ] {
            assert_eq!(Operator::parse(name), None, "{name}");
        }
    }
}
