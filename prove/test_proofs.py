"""Every step of the arithmetic is proved, every wrong design has its counter-example, and the crate's cases are those of the formulas."""

import importlib.util
import os
import unittest

import proofs

HAS_Z3 = importlib.util.find_spec("z3") is not None or os.environ.get("CI") == "true"


class Proofs(unittest.TestCase):
    @unittest.skipUnless(HAS_Z3, "z3-solver is not installed: nothing is proved")
    def test_each_step_is_inductive(self):
        for name, step in proofs.steps()[0].items():
            with self.subTest(name):
                self.assertIsNone(proofs.counter_example(*step))
                assumed, known, _ = step
                self.assertIsNotNone(proofs.counter_example(assumed, known, [False]), "what is assumed can be")

    @unittest.skipUnless(HAS_Z3, "z3-solver is not installed: nothing is refuted")
    def test_each_wrong_design_has_a_counter_example(self):
        for name, step in proofs.steps()[1].items():
            with self.subTest(name):
                self.assertIsNotNone(proofs.counter_example(*step))

    def test_cases_of_the_crate_are_those_of_the_formulas(self):
        self.assertEqual(proofs.CASES.read_text(), proofs.cases(), "`python3 prove/proofs.py` writes them anew")


if __name__ == "__main__":
    unittest.main()
