"""Access control lists: who may do what, by rules that are records of the catalogue.

- `acl_settings`: whether there is an authorizer, who stands above the rules
- `acl_meaning`: what a rule means, one rule at a time: which one decides a question, and why
- `acl_index`: the same for thousands of names at once; `acl_authorizer`: answers the API handlers
- `acl_checks`: which rules and filters can be asked for
- `acl_text`: rules as the command line and messages write them

The rules themselves are values of `metadata.acls`; the questions are `diskless.authorization`'s.
"""
