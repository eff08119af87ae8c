//! Expressions, with every name and every value behind a placeholder: nothing stored is ever read as an expression, and no
//! name of ours is ever one of DynamoDB's reserved words.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

/// The names and values of one request.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

impl Placeholders {
    /// The placeholder of an attribute's name.
    pub(crate) fn name(&mut self, attribute: &str) -> String {
        let known = self.names.iter().find(|(_, name)| *name == attribute).map(|(placeholder, _)| placeholder.clone());
        known.unwrap_or_else(|| {
            let placeholder = format!("#n{}", self.names.len());
            self.names.insert(placeholder.clone(), attribute.to_owned());
            placeholder
        })
    }

    /// A placeholder for a value.
    pub(crate) fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// `name operator value`, such as `state = CLAIMED`.
    pub(crate) fn compare(&mut self, attribute: &str, operator: &str, value: AttributeValue) -> String {
        format!("{} {operator} {}", self.name(attribute), self.value(value))
    }

    pub(crate) fn absent(&mut self, attribute: &str) -> String {
        format!("attribute_not_exists({})", self.name(attribute))
    }

    /// Whether an attribute is of a type: `S`, `N`, `B`, …
    pub(crate) fn is_of_type(&mut self, attribute: &str, of: &str) -> String {
        format!("attribute_type({}, {})", self.name(attribute), self.value(AttributeValue::S(of.to_owned())))
    }

    /// `SET a = x, b = y`.
    pub(crate) fn set<'a>(&mut self, values: impl IntoIterator<Item = (&'a str, AttributeValue)>) -> String {
        let terms: Vec<String> = values.into_iter().map(|(name, value)| self.compare(name, "=", value)).collect();
        format!("SET {}", terms.join(", "))
    }

    /// `REMOVE a, b`.
    pub(crate) fn remove<'a>(&mut self, attributes: impl IntoIterator<Item = &'a str>) -> String {
        let names: Vec<String> = attributes.into_iter().map(|attribute| self.name(attribute)).collect();
        format!("REMOVE {}", names.join(", "))
    }
}

/// All of them.
pub(crate) fn and(terms: impl IntoIterator<Item = String>) -> String {
    join(terms, " AND ")
}

/// Any of them.
pub(crate) fn or(terms: impl IntoIterator<Item = String>) -> String {
    join(terms, " OR ")
}

fn join(terms: impl IntoIterator<Item = String>, operator: &str) -> String {
    let mut terms: Vec<String> = terms.into_iter().collect();
    match terms.len() {
        // DynamoDB refuses parentheses that are not needed.
        1 => terms.remove(0),
        _ => terms.into_iter().map(|term| format!("({term})")).collect::<Vec<_>>().join(operator),
    }
}
