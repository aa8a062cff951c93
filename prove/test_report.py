"""The report: which span is shown, and which of several runs counts. `python3 -m unittest prove/test_report.py`"""

import unittest

import products
import report


def fleet(name, needed, standing="documented", kept=True, is_ours=False):
    span = {"first_sent": 0.0, "last_received": 1.0, "granted": needed, "allowed": 100, "needed": needed, "standing": standing}
    loads = {"flood": {"granted": needed, "one_bucket": 100, "refused_wrongly": 0, "worst": span}}
    return {"product": name, "instances": 1, "is_ours": is_ours, "retry_after": {"kept": kept}, "loads": loads}


class Report(unittest.TestCase):
    def test_several_runs_show_the_lesser_excess_of_a_peer_and_the_greater_of_ours(self):
        peer, ours = report.merged([fleet("a", 150, kept=False), fleet("b", 100, is_ours=True), fleet("a", 120), fleet("b", 101, kept=False, is_ours=True)])
        self.assertEqual((report.worst(peer)[1]["needed"], peer["retry_after"]["kept"]), (120, True))
        self.assertEqual((report.worst(ours)[1]["needed"], ours["retry_after"]["kept"]), (101, False))

    def test_what_is_beyond_the_documentation_is_shown_first(self):
        result = fleet("a", 300)
        result["loads"]["edge"] = fleet("a", 150, "beyond")["loads"]["flood"]
        self.assertEqual(report.worst(result)[0], "edge")

    def test_text_table_and_picture_name_each_product_that_ran_or_not(self):
        results = [fleet("a", 100, "within"), {"product": "b", "instances": 2, "not_run": "first\nlast line"}]
        self.assertIn("not run: last line", report.text(results, products))
        self.assertIn("| a | 1.00 (100/100, flood) | – |", report.markdown(results))
        self.assertIn("100/100", report.picture(results))


if __name__ == "__main__":
    unittest.main()
