#!/usr/bin/python3
"""validate.py FILE...: checks Kubernetes objects in YAML files against schemas/<kind>.json."""

import json
import pathlib
import sys

import jsonschema
import yaml


class Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, as the apiserver does."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


schemas = pathlib.Path(__file__).parent / "schemas"
failed = False
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        for document in yaml.load_all(file, Loader):
            schema = json.loads((schemas / f"{document['kind']}.json").read_text())
            for error in jsonschema.Draft7Validator(schema).iter_errors(document):
                print(f"{name}: {error.json_path}: {error.message}")
                failed = True
sys.exit(failed or len(sys.argv) < 2)
