"""costs.csv: the bill in the columns of the FinOps FOCUS specification, version 1.0, so that finance tools read it.

One row for each attempt and phase (lost work apart). The columns that are our own begin with `x_`, as FOCUS asks.
Source: FOCUS 1.0, https://focus.finops.org/focus-specification/v1-0/
"""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tokenmill.cost.report_model import Report

FOCUS_VERSION = "1.0"


def focus_csv(report: Report) -> str:
    """The whole file; a header alone for an unpriced pipeline, since FOCUS knows no charge without a cost."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(_row(report, None)), lineterminator="\n")
    writer.writeheader()
    for line in report.bill:
        writer.writerow(_row(report, line.model_dump()))
    return out.getvalue()


def _row(report: Report, line: dict[str, Any] | None) -> dict[str, Any]:
    line = line or {}
    usd, seconds = line.get("usd", Decimal(0)), line.get("seconds", 0.0)
    rate, list_rate = line.get("usd_per_hour"), line.get("on_demand_usd_per_hour") or line.get("usd_per_hour")
    begin, end = _stamp(line.get("started", 0.0)), _stamp(line.get("ended", 0.0))
    month_begin, month_end = _month(line.get("started", 0.0))
    hours = f"{seconds / 3600:.9f}"
    phase = f"{line.get('phase')}{' (lost work)' if line.get('lost') else ''}"
    tags = {"pipeline": report.pipeline, "run": report.run_id, "invocation": line.get("invocation_id")}
    return {
        "AvailabilityZone": "",
        "BilledCost": f"{usd:f}",
        "BillingAccountId": "tokenmill",
        "BillingAccountName": "tokenmill",
        "BillingCurrency": report.cost.currency,
        "BillingPeriodEnd": month_end,
        "BillingPeriodStart": month_begin,
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": f"{line.get('stage')}: {phase}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": end,
        "ChargePeriodStart": begin,
        "CommitmentDiscountCategory": "",
        "CommitmentDiscountId": "",
        "CommitmentDiscountName": "",
        "CommitmentDiscountStatus": "",
        "CommitmentDiscountType": "",
        "ConsumedQuantity": hours,
        "ConsumedUnit": "Hours",
        "ContractedCost": f"{usd:f}",
        "ContractedUnitPrice": "" if rate is None else f"{rate:f}",
        "EffectiveCost": f"{usd:f}",
        "InvoiceIssuerName": line.get("price_source") or "",
        "ListCost": f"{usd:f}",
        "ListUnitPrice": "" if list_rate is None else f"{rate:f}",
        "PricingCategory": "Dynamic" if line.get("market") == "spot" else "Standard",
        "PricingQuantity": hours,
        "PricingUnit": "Hours",
        "ProviderName": line.get("price_source") or "",
        "PublisherName": "tokenmill",
        "RegionId": line.get("region") or "",
        "RegionName": line.get("region") or "",
        "ResourceId": line.get("host") or "",
        "ResourceName": line.get("host") or "",
        "ResourceType": line.get("machine_type") or "",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "tokenmill training",
        "SkuId": line.get("machine_type") or "",
        "SkuPriceId": f"{line.get('machine_type')}/{line.get('market')}",
        "SubAccountId": report.pipeline,
        "SubAccountName": report.pipeline,
        "Tags": json.dumps({key: value for key, value in tags.items() if value}),
        "x_Stage": line.get("stage"),
        "x_Phase": line.get("phase"),
        "x_LostWork": str(bool(line.get("lost"))).lower(),
        "x_AttemptId": line.get("attempt_id"),
    }


def _stamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _month(unix: float) -> tuple[str, str]:
    begin = datetime.fromtimestamp(unix, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    return begin.strftime("%Y-%m-%dT%H:%M:%SZ"), end.strftime("%Y-%m-%dT%H:%M:%SZ")
